"""Generalised advantage estimation over the decisions of agents that need not act at every step.

γ counts an agent's own decisions: rewards that arrive while it is idle are added to its latest decision undiscounted,
and idle rows are skipped.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core.types import Array, Experience


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
    _scan(
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


@njit(cache=True)
def _scan(  # type: ignore[no-untyped-def]  # Numba infers these
    reward, value, bootstrap, active, terminated, truncated, acting, gamma, gae_lambda, advantage, valid
) -> None:
    """Go through time backwards, for all sequences at once."""
    steps, sequences = reward.shape
    next_advantage = np.zeros(sequences, np.float32)  # of the next decision
    next_value = value[steps].copy()  # of the next decision
    return_since = np.zeros(sequences, np.float32)  # reward since this decision
    closed = acting.copy()  # whether a next decision or an end follows
    for t in range(steps - 1, -1, -1):
        for i in range(sequences):
            if terminated[t, i] or truncated[t, i]:
                next_advantage[i] = 0
                return_since[i] = 0
                next_value[i] = bootstrap[t, i] if truncated[t, i] else 0
                closed[i] = True
            return_since[i] += reward[t, i]
            if active[t, i]:
                if closed[i]:
                    delta = return_since[i] + gamma * next_value[i] - value[t, i]
                    next_advantage[i] = delta + gamma * gae_lambda * next_advantage[i]
                    advantage[t, i] = next_advantage[i]
                    valid[t, i] = True
                next_value[i] = value[t, i]
                return_since[i] = 0
                closed[i] = True
