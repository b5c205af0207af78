"""What improves a policy from experience; one algorithm, one file."""
