"""Generalised advantage estimation over the decisions of agents that need not act at every step.

γ counts an agent's own decisions: rewards that arrive while it is idle are added to its latest decision undiscounted,
and idle rows are skipped.
"""

from __future__ import annotations

import math

import numpy as np

from coterie.core.types import Array, Experience
from coterie.nn.launch import kernel


def advantages(
    experience: Experience, rewards: Array, values: Array, bootstrap: Array, gamma: float, gae_lambda: float
) -> tuple[Array, Array, Array]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), returns and which rows are valid.

    `values [T+1, N, A]` are V at every row, `bootstrap [T, N, A]` is V of the last observation where an
    episode was truncated. Returned arrays are `[T, N, A]`; invalid rows (idle, or open at the end) are 0.
    """
    shape = rewards.shape
    advantage = np.zeros(shape, np.float32)
    valid = np.zeros(shape, np.bool_)
    _scan.over(
        math.prod(shape[1:]),
        rewards.reshape(shape[0], -1),
        values.reshape(shape[0] + 1, -1),
        bootstrap.reshape(shape[0], -1),
        experience.active.reshape(shape[0], -1),
        experience.terminated.reshape(shape[0], -1),
        experience.truncated.reshape(shape[0], -1),
        experience.acting.reshape(-1),
        np.float32(gamma),
        np.float32(gae_lambda),
        advantage.reshape(shape[0], -1),
        valid.reshape(shape[0], -1),
    )
    return advantage, np.where(valid, advantage + values[:-1], np.float32(0)), valid


@kernel
def _scan(
    i: int,
    reward: Array,
    value: Array,
    bootstrap: Array,
    active: Array,
    terminated: Array,
    truncated: Array,
    acting: Array,
    gamma: float,
    gae_lambda: float,
    advantage: Array,
    valid: Array,
) -> None:
    """Go through the time of one sequence backwards; arrays are `[T, sequences]`."""
    steps, zero = reward.shape[0], np.float32(0)
    next_advantage = return_since = zero  # of the next decision; the reward since this decision
    next_value = value[steps, i]  # of the next decision
    closed = acting[i]  # whether a next decision or an end follows
    for t in range(steps - 1, -1, -1):
        if terminated[t, i] or truncated[t, i]:
            next_advantage = return_since = zero
            next_value = bootstrap[t, i] if truncated[t, i] else zero
            closed = True
        return_since += reward[t, i]
        if active[t, i]:
            if closed:
                delta = return_since + gamma * next_value - value[t, i]
                next_advantage = delta + gamma * gae_lambda * next_advantage
                advantage[t, i] = next_advantage
                valid[t, i] = True
            next_value = value[t, i]
            return_since = zero
            closed = True
