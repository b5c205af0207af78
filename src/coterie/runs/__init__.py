"""Runs on disk: the directory of a run, checkpoints, metrics, trackers, the index of runs."""
