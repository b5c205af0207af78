"""Compare runs: IQM with intervals, probability of improvement, steps to a threshold."""
