"""Tree search: array trees, evaluators, and the policy that plays by them."""
