"""Generalised advantage estimation over a table of decisions.

γ counts an agent's own decisions: rewards that arrive while it is idle are added to its latest decision undiscounted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from coterie.core.decisions import Decisions
from coterie.core.types import Array
from coterie.nn.launch import kernel


def advantages(
    decisions: Decisions, rewards: Array, values: Array, next_values: Array, gamma: float, gae_lambda: float
) -> tuple[Array, Array]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16) and returns, `[T, N, A]`; 0 in invalid rows.

    `values` are V of the decisions, `next_values` V of what the agent saw next; both are `[T, N, A]`.
    """
    advantage = np.zeros(rewards.shape, np.float32)
    bootstrapped = decisions.truncated | ~decisions.terminated
    given = (rewards, values, next_values, bootstrapped, decisions.ends, decisions.valid, advantage)
    arrays = Scanned(*(array.reshape(len(array), -1) for array in given))
    _scan.over(math.prod(rewards.shape[1:]), arrays, gamma, gae_lambda)
    return advantage, np.where(decisions.valid, advantage + values, np.float32(0))


class Scanned(NamedTuple):
    """Arrays of the scan, `[T, agents]`; the last one is filled."""

    reward: Array
    value: Array
    next_value: Array
    bootstrapped: Array  # bool: the next value counts
    ends: Array  # bool
    valid: Array  # bool
    advantage: Array


@kernel
def _scan(i: int, arrays: Scanned, gamma: float, gae_lambda: float) -> None:
    """Go through the time of one agent backwards."""
    zero, discount, decay = np.float32(0), np.float32(gamma), np.float32(gamma) * np.float32(gae_lambda)
    ahead = zero  # advantage of the agent's next decision
    for t in range(arrays.reward.shape[0] - 1, -1, -1):
        if arrays.valid[t, i]:
            after = arrays.next_value[t, i] if arrays.bootstrapped[t, i] else zero
            delta = arrays.reward[t, i] + discount * after - arrays.value[t, i]
            ahead = delta + decay * (zero if arrays.ends[t, i] else ahead)
            arrays.advantage[t, i] = ahead
