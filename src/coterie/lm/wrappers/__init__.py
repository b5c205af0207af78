"""What surrounds a backend: cache, budget, retries, concurrency, usage."""
