"""SAC's losses and their slopes, compiled: the one place where they are written.

Both paths call these functions on rows `[M]` of one parameter set; they differ only in the networks' derivatives.
Equations are those of Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.nn.kernels import OptimizedParams, adam, squashed_slopes


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    actor_rate: float
    critic_rate: float
    temperature_rate: float  # 0: the temperature stays as it is
    max_grad_norm: float  # infinity: gradients as they are
    tau: float
    target_entropy: float


@njit(cache=True, error_model="numpy")
def keep_lower(out: Array, first: bool, lower: Array) -> None:
    """Keep the lower of several critics' values `[M, 1]` in `lower [M]`."""
    for m in range(len(lower)):
        lower[m] = out[m, 0] if first else min(lower[m], out[m, 0])


@njit(cache=True, error_model="numpy")
def soft_targets(reward: Array, discount: Array, log_prob: Array, alpha: float, lower: Array) -> None:
    """Replace the next action's lower value by the critics' target, r + γ (Q − α log π) (eqs. 3 and 5)."""
    for m in range(len(lower)):
        future = lower[m] - np.float32(alpha) * log_prob[m]
        lower[m] = reward[m] + discount[m] * future if discount[m] > 0 else reward[m]


@njit(cache=True, error_model="numpy")
def critic_loss(out: Array, target: Array, weight: Array) -> tuple[float, float, float]:
    """Replace values `[M, 1]` by the slopes of Σ weight · ½(Q − target)² (eq. 5); returns (loss, mean value, error)."""
    loss = mean = size = 0.0
    for m in range(len(target)):
        error = out[m, 0] - target[m]
        loss += weight[m] * 0.5 * error * error
        mean += weight[m] * out[m, 0]
        size += weight[m] * abs(error)
        out[m, 0] = weight[m] * error
    return loss, mean, size


@njit(cache=True, error_model="numpy")
def lower_value_slopes(first: Array, second: Array, weight: Array) -> float:
    """Replace two critics' values `[M, 1]` by the slopes of −Σ weight · min(Q₁, Q₂) (eq. 7); returns its negative."""
    mean = 0.0
    for m in range(len(weight)):
        takes_first = first[m, 0] <= second[m, 0]
        mean += weight[m] * min(first[m, 0], second[m, 0])
        first[m, 0] = -weight[m] if takes_first else np.float32(0)
        second[m, 0] = np.float32(0) if takes_first else -weight[m]
    return mean


@njit(cache=True, error_model="numpy")
def policy_slopes(out: Array, noise: Array, action: Array, action_slope: Array, weight: Array, alpha: float) -> None:
    """Replace the policy's outputs by the slopes of Σ weight · (α log π − Q) (eqs. 7 and 9).

    `action_slope [M, K]` are those of −Σ weight · Q by actions.
    """
    squashed_slopes(out, noise, action, action_slope, np.float32(alpha) * weight)


@njit(cache=True, error_model="numpy")
def temperature_step(
    temperature: OptimizedParams, s: int, log_prob: Array, weight: Array, hyperparams: Hyperparams, step: int
) -> float:
    """One Adam step of log α down Σ weight · (−log α) (log π + target entropy) (eq. 18); returns the entropy.

    As in the authors' code log α takes the place of α in the objective: the sign of the slope, and so the solution, is
    the same, and steps do not shrink together with α.
    """
    grad, entropy = np.zeros(1, np.float32), 0.0
    for m in range(len(weight)):
        grad[0] -= weight[m] * (log_prob[m] + np.float32(hyperparams.target_entropy))
        entropy -= weight[m] * log_prob[m]
    if hyperparams.temperature_rate > 0:
        flat, mean, square = temperature.flat[s], temperature.mean[s], temperature.square[s]
        adam(flat, grad, mean, square, step, hyperparams.temperature_rate, np.inf)
    return entropy
