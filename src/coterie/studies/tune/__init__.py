"""Search for better settings with Optuna."""
