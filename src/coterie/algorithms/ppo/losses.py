"""PPO's losses and their slopes, compiled: the one place where the objective is written.

A loss takes what a network says of a decision (the log-probability of its action, the entropy of its distribution, the
value of its state) and returns the slope of the loss with respect to it. The compiled path (`kernels.py`) calls the
functions for one decision at a time; the autograd path calls the ones for arrays and hands their slopes to
`torch.autograd.backward`. The two paths therefore differ only in the derivative of the network itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array

Float32 = Any  # a scalar of compiled code
NAMES = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")  # what `totals` adds up, in this order


class LossSettings(NamedTuple):
    """The numbers that the losses depend on."""

    clip: float  # how far the probability ratio to the policy that acted may move from 1
    value_clip: float  # how far a value may move, in the critic's units; 0: any distance
    entropy_coefficient: float
    normalize_advantages: bool


@njit(cache=True, error_model="numpy")
def normalize(weight: Array, advantage: Array, wanted: bool) -> tuple[Array, Array]:
    """Weights `[M]` that sum to 1, and advantages `[M]` of mean 0 and deviation 1 if wanted.

    Weights are 1 for decisions and 0 for padding; a minibatch of padding alone keeps weights of 0.
    """
    total = np.float32(0)
    for w in weight:
        total += w
    weight = weight / max(total, np.float32(1))
    if wanted:
        mean = 0.0
        for i in range(len(weight)):
            mean += weight[i] * advantage[i]
        variance = 0.0
        for i in range(len(weight)):
            variance += weight[i] * (advantage[i] - mean) ** 2
        advantage = (advantage - np.float32(mean)) / np.float32(np.sqrt(variance) + 1e-8)
    return weight, advantage


@njit(cache=True, error_model="numpy")
def policy_loss(
    log_prob: Float32,
    entropy: Float32,
    old_log_prob: Float32,
    importance: Float32,
    advantage: Float32,
    weight: Float32,
    settings: LossSettings,
    totals: Array,
) -> tuple[Float32, Float32]:
    """Clipped surrogate objective with entropy bonus of one decision (Schulman et al. 2017, eqs. 7 and 9).

    Adds the decision's part of the means to `totals` and returns the loss's slopes with respect to log-probability and
    entropy. `kl` is Schulman's k3 estimator, which is never negative. An action drawn from another distribution μ than
    the policy's own counts `importance` = π_old/μ times, so that means are those of π_old; the clip is on π/π_old
    alone. A clip of π/μ around 1 would stop actions whose π_old/μ lies outside it before the first step.
    """
    log_ratio = log_prob - old_log_prob
    ratio = np.exp(log_ratio)
    clipped = min(max(ratio, np.float32(1 - settings.clip)), np.float32(1 + settings.clip))
    totals[0] -= weight * importance * min(ratio * advantage, clipped * advantage)
    totals[2] += weight * entropy
    totals[3] += weight * importance * (ratio - 1 - log_ratio)
    totals[4] += weight * (abs(ratio - 1) > settings.clip)
    inside = ratio * advantage <= clipped * advantage
    slope = -weight * importance * ratio * advantage if inside else np.float32(0)
    return slope, -(np.float32(settings.entropy_coefficient) * weight)


@njit(cache=True, error_model="numpy")
def value_loss(
    value: Float32, old_value: Float32, target: Float32, weight: Float32, limit: float, totals: Array
) -> Float32:
    """Half the squared error of one value; returns its slope.

    With a `limit` the value is also held that close to the old one, and the larger of the two errors counts.
    """
    error = value - target
    loss, slope = error * error, error
    if limit > 0:
        move = value - old_value
        held = min(max(move, np.float32(-limit)), np.float32(limit))
        held_error = old_value + held - target
        if held_error * held_error > loss:
            loss, slope = held_error * held_error, held_error if held == move else np.float32(0)
    totals[1] += np.float32(0.5) * weight * loss
    return weight * slope


@njit(cache=True, error_model="numpy")
def policy_losses(
    log_prob: Array,
    entropy: Array,
    old_log_prob: Array,
    importance: Array,
    advantage: Array,
    weight: Array,
    settings: LossSettings,
) -> tuple[Array, Array, Array]:
    """`policy_loss` of arrays `[M]`: slopes of log-probabilities and of entropies `[M]`, and totals."""
    totals = np.zeros(len(NAMES))
    slopes = np.zeros((2, len(weight)), np.float32)
    weight, advantage = normalize(weight, advantage, settings.normalize_advantages)
    for i in range(len(weight)):
        if weight[i] > 0:  # padding may hold anything, and 0·∞ is no number
            slopes[0, i], slopes[1, i] = policy_loss(
                log_prob[i], entropy[i], old_log_prob[i], importance[i], advantage[i], weight[i], settings, totals
            )
    return slopes[0], slopes[1], totals


@njit(cache=True, error_model="numpy")
def value_losses(
    value: Array, old_value: Array, target: Array, weight: Array, settings: LossSettings
) -> tuple[Array, Array]:
    """`value_loss` of arrays `[M]`: slopes of values `[M]`, and totals."""
    totals = np.zeros(len(NAMES))
    slopes = np.zeros(len(weight), np.float32)
    weight, _ = normalize(weight, weight, False)
    for i in range(len(weight)):
        slopes[i] = value_loss(value[i], old_value[i], target[i], weight[i], settings.value_clip, totals)
    return slopes, totals
