"""Wrappers around language models: cache, budget, retry, concurrency and usage counting."""
