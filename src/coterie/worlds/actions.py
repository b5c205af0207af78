"""The check of actions before a world's kernels use them as indices: on the host, where the caller can be told."""

from __future__ import annotations

from coterie.core.jit import jit
from coterie.core.types import Array


@jit
def first_outside(actions: Array, low: float, high: float) -> int:
    """The flat index of the first number outside [low, high], NaN included; −1 if there is none."""
    flat = actions.ravel()  # a view where the array has no gaps
    for i in range(len(flat)):
        if not low <= flat[i] <= high:
            return i
    return -1
