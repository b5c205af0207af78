"""Language models that are asked: back ends, loading by name, cache, budget, scored choice."""
