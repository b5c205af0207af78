"""SAC's losses and their slopes, compiled: the one place where they are written.

Decisions of a batch are counted m = 0 to R − 1, those of one parameter set after those of another. Equations are those
of Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from coterie.core.types import Array
from coterie.nn.launch import kernel

NAMES = ("critic_loss", "q_mean", "td_error", "actor_q", "entropy")  # what `terms` holds, in this order


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    actor_rate: float
    critic_rate: float
    temperature_rate: float  # 0: the temperature stays as it is
    max_grad_norm: float  # infinity: gradients as they are
    tau: float
    target_entropy: float


@kernel
def join(m: int, x: Array, action: Array, joined: Array) -> None:
    """Write a critic's inputs: the policy's `x [R, D]`, then an action `[R, K]`."""
    for j in range(x.shape[1]):
        joined[m, j] = x[m, j]
    for k in range(action.shape[1]):
        joined[m, x.shape[1] + k] = action[m, k]


@kernel
def soft_targets(
    m: int,
    first: Array,
    second: Array,
    reward: Array,
    discount: Array,
    log_prob: Array,
    log_alpha: Array,
    targets: Array,
) -> None:
    """The critics' target, r + γ (min Q − α log π), from both target critics' values `[R, 1]` (eqs. 3 and 5)."""
    alpha = np.float32(math.exp(log_alpha[m * len(log_alpha) // len(reward), 0]))
    targets[m] = reward[m]
    if discount[m] > 0:  # what follows an end may be anything
        targets[m] = reward[m] + discount[m] * (min(first[m, 0], second[m, 0]) - alpha * log_prob[m])


@kernel
def critic_loss(m: int, out: Array, targets: Array, weight: Array, critics: int, slopes: Array, terms: Array) -> None:
    """Slopes of Σ weight · ½(Q − target)² by values `[R, 1]` (eq. 5); adds to the mean loss of so many critics."""
    error = out[m, 0] - targets[m]
    slopes[m, 0] = weight[m] * error
    terms[m, 0] += weight[m] * 0.5 * error * error / critics
    terms[m, 1] = weight[m] * out[m, 0]
    terms[m, 2] = weight[m] * abs(error)


@kernel
def lower_value_slopes(
    m: int, first: Array, second: Array, weight: Array, by_first: Array, by_second: Array, terms: Array
) -> None:
    """Slopes of −Σ weight · min(Q₁, Q₂) by both critics' values `[R, 1]` (eq. 7)."""
    takes_first = first[m, 0] <= second[m, 0]
    by_first[m, 0] = -weight[m] if takes_first else np.float32(0)
    by_second[m, 0] = np.float32(0) if takes_first else -weight[m]
    terms[m, 3] = weight[m] * min(first[m, 0], second[m, 0])


@kernel
def entropy_slopes(m: int, weight: Array, log_prob: Array, log_alpha: Array, slopes: Array, terms: Array) -> None:
    """Slopes of Σ weight · α log π by log-densities `[R]` (eqs. 7 and 9)."""
    slopes[m] = np.float32(math.exp(log_alpha[m * len(log_alpha) // len(weight), 0])) * weight[m]
    terms[m, 4] = -weight[m] * log_prob[m]


@kernel
def temperature_slopes(s: int, log_prob: Array, weight: Array, target_entropy: float, slopes: Array) -> None:
    """Slopes `[S, 1]` of Σ weight · (−log α) (log π + target entropy) by log α (eq. 18), for `[S, M]`.

    As in the authors' code log α takes the place of α in the objective: the sign of the slope, and so the solution, is
    the same, and steps do not shrink together with α.
    """
    slopes[s, 0] = 0
    for m in range(log_prob.shape[1]):
        slopes[s, 0] -= weight[s, m] * (log_prob[s, m] + np.float32(target_entropy))


@kernel
def add_up(k: int, terms: Array, sums: Array) -> None:
    """Add the terms `[R, 5]` to `sums [5]`, in the order of rows."""
    for m in range(len(terms)):
        sums[k] += terms[m, k]
