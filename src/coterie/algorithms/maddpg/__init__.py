"""Multi-agent deterministic policy gradients."""
