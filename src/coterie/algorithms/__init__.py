"""Learners: they improve a policy from experience. One folder per algorithm."""
