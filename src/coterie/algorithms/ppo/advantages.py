"""Generalised advantage estimation over a table of decisions.

γ counts an agent's own decisions: rewards that arrive while it is idle are added to its latest decision undiscounted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core.decisions import Decisions
from coterie.core.types import Array


def advantages(
    decisions: Decisions, rewards: Array, values: Array, next_values: Array, gamma: float, gae_lambda: float
) -> tuple[Array, Array]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16) and returns, `[T, N, A]`; 0 in invalid rows.

    `values` are V of the decisions, `next_values` V of what the agent saw next; both are `[T, N, A]`.
    """
    shape, advantage = rewards.shape, np.zeros(rewards.shape, np.float32)
    bootstrapped = decisions.truncated | ~decisions.terminated
    arrays = (rewards, values, next_values, bootstrapped, decisions.ends, decisions.valid, advantage)
    _scan(np.float32(gamma), np.float32(gae_lambda), *(array.reshape(shape[0], -1) for array in arrays))
    return advantage, np.where(decisions.valid, advantage + values, np.float32(0))


@njit(cache=True)
def _scan(  # type: ignore[no-untyped-def]  # Numba infers these
    gamma, gae_lambda, reward, value, next_value, bootstrapped, ends, valid, advantage
) -> None:
    """Go through time backwards, for all agents at once."""
    steps, agents = reward.shape
    ahead = np.zeros(agents, np.float32)  # advantage of the agent's next decision
    for t in range(steps - 1, -1, -1):
        for i in range(agents):
            if valid[t, i]:
                after = next_value[t, i] if bootstrapped[t, i] else np.float32(0)
                delta = reward[t, i] + gamma * after - value[t, i]
                ahead[i] = delta + gamma * gae_lambda * (np.float32(0) if ends[t, i] else ahead[i])
                advantage[t, i] = ahead[i]
