"""DQN's losses and their slopes, compiled: the one place where they are written.

The compiled path (`kernels.py`) calls `td_loss` and `margin_loss` for one transition at a time; the autograd path calls
`td_losses` and `margin_losses` for a batch and hands the slopes to autograd. The two paths differ only in the
derivative of the network and the mixer.
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


@njit(cache=True, error_model="numpy")
def margin_loss(values: Array, legal: Array, advised: int, margin: Float32) -> tuple[Float32, int]:
    """Large-margin loss of an advised action (Hester et al. 2018, J_E): (loss, the action that comes too close).

    J_E = max_a [Q(s, a) + margin · 1(a ≠ advised)] − Q(s, advised), over legal actions: nobody learns the values of
    others. Its slope is 1 for the action that comes too close and −1 for the advised one, which cancel where these are
    the same.
    """
    close, top = advised, values[advised]
    for j in range(len(values)):
        if j != advised and legal[j] and values[j] + margin > top:
            close, top = j, np.float32(values[j] + margin)
    return np.float32(top - values[advised]), close


@njit(cache=True, error_model="numpy")
def margin_losses(values: Array, legal: Array, advised: Array, weight: Array, margin: Float32) -> tuple[Array, Array]:
    """`margin_loss` of rows `[R, K]`: losses `[R]`, and the slopes `[R, K]` of their sum weighted by `weight [R]`.

    Rows without advice, −1, count 0.
    """
    loss, slope = np.zeros(len(values), np.float32), np.zeros_like(values)
    for i in range(len(values)):
        if advised[i] >= 0:
            loss[i], close = margin_loss(values[i], legal[i], advised[i], margin)
            slope[i, close] += weight[i]
            slope[i, advised[i]] -= weight[i]
    return loss, slope
