"""Compiled twin of `outcomes.py`: distributions told by a critic, and how far they are from others."""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.judging import Slopes
from coterie.types import Array


@njit(cache=True, error_model="numpy")
def tell(out: Array, chances: Array) -> np.float32:
    """A critic's row as Q chances; its outcomes are the row's last Q numbers. Returns their mean."""
    count = len(chances)
    if count == 1:
        chances[0] = 1
        return out[0]
    top, total, mean = np.float32(-np.inf), np.float32(0), np.float32(0)
    for q in range(count):
        top = max(top, out[q])
    for q in range(count):
        chances[q] = np.exp(out[q] - top)
        total += chances[q]
    for q in range(count):
        chances[q] /= total
        mean += chances[q] * out[count + q]
    return mean


@njit(cache=True, error_model="numpy")
def miss(out: Array, chances: Array, aim: Array, odds: Array, slopes: Slopes, share: float) -> float:
    """How far a told distribution is from the aimed one, as in `outcomes.miss`; `out` gives way to its gradient."""
    count = len(chances)
    loss = mean = 0.0
    for q in range(count):
        far = within = pull = 0.0
        for j in range(count):
            gap = out[count + q] - aim[j]
            far += odds[j] * abs(gap)
            pull += odds[j] * np.sign(gap)
            gap = out[count + q] - out[count + j]
            within += chances[j] * abs(gap)
            pull -= chances[j] * np.sign(gap)
        loss += chances[q] * (far - within / 2)
        mean += chances[q] * (far - within)
        slopes.chance[q], slopes.outcome[q] = far - within, pull
    for q in range(count):
        out[q] = share * chances[q] * (slopes.chance[q] - mean)
        out[count + q] = share * chances[q] * slopes.outcome[q]
    return loss
