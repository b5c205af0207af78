"""DQN's loss and its slope, compiled: the one place where it is written.

The compiled path (`kernels.py`) calls `td_loss` for one transition at a time; the autograd path calls `td_losses` for a
batch and hands the slopes to autograd. The two paths differ only in the derivative of the network and the mixer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from coterie.core.types import Array

Float32 = Any  # a scalar of compiled code


@njit(cache=True, error_model="numpy")
def td_loss(
    value: Float32, target: Float32, weight: Float32, count: Float32, delta: Float32
) -> tuple[Float32, float, Float32]:
    """Huber loss of one temporal-difference error: (error, loss, slope of the weighted mean loss).

    Errors beyond `delta` count linearly, which is Mnih et al. 2015's clipping of the error. The slope is that of the
    mean over `count` transitions with importance weights; the loss is the transition's own, without them.
    """
    error = np.float32(value - target)
    size = abs(error)
    bounded = min(size, delta)
    slope = np.float32(weight * bounded * np.sign(error) / count)
    return error, bounded * (size - 0.5 * bounded), slope


@njit(cache=True, error_model="numpy")
def td_losses(value: Array, target: Array, weight: Array, delta: float) -> tuple[Array, Array, Array]:
    """`td_loss` of arrays `[S, B]`: errors, losses and slopes `[S, B]`."""
    error, loss, slope = np.empty_like(value), np.empty_like(value), np.empty_like(value)
    count = np.float32(value.shape[1])
    for s in range(value.shape[0]):
        for i in range(value.shape[1]):
            error[s, i], loss[s, i], slope[s, i] = td_loss(value[s, i], target[s, i], weight[s, i], count, delta)
    return error, loss, slope
