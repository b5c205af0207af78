"""Compiled actions of deterministic policies: settled, drawn through a Gumbel-softmax, and their gradients."""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.heads import IMPOSSIBLE
from coterie.kernels import squash
from coterie.types import Array


@njit(cache=True, error_model="numpy")
def _best(out: Array, start: int, stop: int, legal: Array) -> int:
    """The highest output of a choice, the first of several; illegal ones count as `IMPOSSIBLE`."""
    at, top = start, np.float32(-np.inf)
    for k in range(start, stop):
        value = out[k] if legal[k] else np.float32(IMPOSSIBLE)
        if value > top:
            at, top = k, value
    return at


@njit(cache=True, error_model="numpy")
def settle(out: Array, legal: Array, choices: Array, clipped: bool, action: Array) -> None:
    """The encoded greedy action."""
    if len(choices) == 0:
        for k in range(len(out)):
            action[k] = squash(out[k], clipped)
        return
    start = 0
    action[:] = 0
    for size in choices:
        action[_best(out, start, start + size, legal)] = 1
        start += size


@njit(cache=True, error_model="numpy")
def unsquash(slope: np.float32, out: np.float32, point: np.float32, clipped: bool) -> np.float32:
    """An output's gradient from that of its squashed point; beyond the bounds only the way back has one."""
    if not clipped:
        return slope * (np.float32(1) - point * point)
    outwards = (out > 1 and slope < 0) or (out < -1 and slope > 0)
    return np.float32(0) if outwards else slope


@njit(cache=True, error_model="numpy")
def through_choices(
    out: Array, gumbel: Array, legal: Array, choices: Array, temperature: float, action: Array, soft: Array
) -> None:
    """A drawn choice `action`, and the softmax `soft` that its gradient is taken of."""
    noisy, start = out + gumbel, 0
    settle(noisy, legal, choices, False, action)
    for size in choices:
        top, total = np.float32(-np.inf), np.float32(0)
        for k in range(start, start + size):
            soft[k] = (noisy[k] if legal[k] else np.float32(IMPOSSIBLE)) / np.float32(temperature)
            top = max(top, soft[k])
        for k in range(start, start + size):
            soft[k] = np.exp(soft[k] - top)
            total += soft[k]
        for k in range(start, start + size):
            soft[k] /= total
        start += size
