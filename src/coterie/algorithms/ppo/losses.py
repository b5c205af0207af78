"""PPO's losses and their slopes, compiled: the one place where the objective is written.

A loss takes what a network says of a decision (the log-probability of its action, the entropy of its distribution, the
value of its state) and returns the slope of the loss with respect to it. Decisions of a minibatch are counted m = 0 to
M − 1, those of one parameter set after those of another; decision m is row `rows[m]` of the batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.nn.launch import kernel

Float32 = Any  # a scalar of compiled code
NAMES = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")  # what `terms` holds, in this order


@kernel
def weigh(
    i: int,
    weight: Array,
    advantage: Array,
    rows: Array,
    ends: Array,
    counts: Array,
    wanted: bool,
    weights: Array,
    advantages: Array,
) -> None:
    """Write weights that sum to 1, and advantages of mean 0 and deviation 1 if wanted, for minibatch b of set s.

    Item i = b·S + s. Minibatch b of all S parameter sets takes the rows up to `ends[b]`, of which `counts[b, s]` of
    set s are no padding. Weights in the batch are 1 for decisions and 0 for padding; a minibatch of padding alone keeps
    weights of 0.
    """
    b, s = i // counts.shape[1], i % counts.shape[1]
    first = ends[b - 1] if b > 0 else 0
    most = (ends[b] - first) // counts.shape[1]
    first += s * most
    last = first + most
    total = np.float32(0)
    for m in range(first, last):
        weights[m] = weight[rows[m]] if m - first < counts[b, s] else np.float32(0)
        advantages[m] = advantage[rows[m]]
        total += weights[m]
    total = max(total, np.float32(1))
    for m in range(first, last):
        weights[m] /= total
    if wanted:
        mean = variance = 0.0
        for m in range(first, last):
            if weights[m] > 0:  # padding may hold anything
                mean += weights[m] * advantages[m]
        for m in range(first, last):
            if weights[m] > 0:
                variance += weights[m] * (advantages[m] - mean) ** 2
        centre, deviation = np.float32(mean), np.float32(math.sqrt(variance) + 1e-8)
        for m in range(first, last):
            advantages[m] = (advantages[m] - centre) / deviation


@jit
def policy_loss(
    log_prob: Float32,
    entropy: Float32,
    old_log_prob: Float32,
    importance: Float32,
    advantage: Float32,
    weight: Float32,
    clip: float,
    entropy_coefficient: float,
    terms: Array,
) -> tuple[Float32, Float32]:
    """Clipped surrogate objective with entropy bonus of one decision (Schulman et al. 2017, eqs. 7 and 9).

    Writes the decision's part of the means to `terms` and returns the loss's slopes with respect to log-probability and
    entropy. `kl` is Schulman's k3 estimator, which is never negative. An action drawn from another distribution μ than
    the policy's own counts `importance` = π_old/μ times, so that means are those of π_old; the clip is on π/π_old
    alone. A clip of π/μ around 1 would stop actions whose π_old/μ lies outside it before the first step.
    """
    log_ratio = log_prob - old_log_prob
    ratio = math.exp(log_ratio)
    clipped = min(max(ratio, np.float32(1 - clip)), np.float32(1 + clip))
    terms[0] = -weight * importance * min(ratio * advantage, clipped * advantage)
    terms[2] = weight * entropy
    terms[3] = weight * importance * (ratio - 1 - log_ratio)
    terms[4] = weight * (abs(ratio - 1) > clip)
    inside = ratio * advantage <= clipped * advantage
    slope = -weight * importance * ratio * advantage if inside else np.float32(0)
    return slope, -(np.float32(entropy_coefficient) * weight)


@jit
def value_loss(
    value: Float32, old_value: Float32, target: Float32, weight: Float32, limit: float, terms: Array
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
    terms[1] = np.float32(0.5) * weight * loss
    return weight * slope


@kernel
def policy_losses(
    m: int,
    log_prob: Array,
    entropy: Array,
    rows: Array,
    weight: Array,
    advantage: Array,
    old_log_prob: Array,
    importance: Array,
    clip: float,
    entropy_coefficient: float,
    by_log_prob: Array,
    by_entropy: Array,
    terms: Array,
) -> None:
    """`policy_loss` of a minibatch; writes slopes by log-probabilities and by entropies `[M]`, and terms `[M, 5]`."""
    r, mine = rows[m], terms[m]
    by_log_prob[m] = by_entropy[m] = mine[0] = mine[2] = mine[3] = mine[4] = 0
    if weight[m] > 0:  # padding may hold anything, and 0·∞ is no number
        by_log_prob[m], by_entropy[m] = policy_loss(
            log_prob[m],
            entropy[m],
            old_log_prob[r],
            importance[r],
            advantage[m],
            weight[m],
            clip,
            entropy_coefficient,
            mine,
        )


@kernel
def value_losses(
    m: int,
    value: Array,
    rows: Array,
    weight: Array,
    old_value: Array,
    target: Array,
    limit: Array,
    slopes: Array,
    terms: Array,
) -> None:
    """`value_loss` of a minibatch; writes slopes by values `[M]`, and terms `[M, 5]`."""
    r = rows[m]
    slopes[m] = terms[m, 1] = 0
    if weight[m] > 0:
        slopes[m] = value_loss(value[m], old_value[r], target[r], weight[m], limit[r], terms[m])


@kernel
def add_up(s: int, terms: Array, ends: Array, counts: Array, totals: Array, kl: Array) -> None:
    """Sum the terms `[R, 5]` of a parameter set over the minibatches of a pass; `ends` and `counts` as in `weigh`.

    Writes `totals [S, 5]`, and `kl [S]` of the latest minibatch.
    """
    for k in range(terms.shape[1]):
        totals[s, k] = 0
    kl[s] = first = 0
    for b in range(len(ends)):
        most, before = (ends[b] - first) // counts.shape[1], totals[s, 3]
        for m in range(first + s * most, first + s * most + counts[b, s]):
            for k in range(terms.shape[1]):
                totals[s, k] += terms[m, k]
        if counts[b, s] > 0:
            kl[s] = totals[s, 3] - before
        first = ends[b]
