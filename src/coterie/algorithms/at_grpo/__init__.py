"""AT-GRPO: agent- and turn-wise group relative policy optimisation, and plain GRPO as its baseline."""
