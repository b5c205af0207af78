"""The processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The number of cores that this process may use: a scheduler or a container may leave it a few of many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
