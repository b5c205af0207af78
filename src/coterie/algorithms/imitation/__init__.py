"""Imitation: behavioural cloning, and DAgger."""
