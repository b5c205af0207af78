"""Backward scans over experience: generalised advantages over active steps.

γ counts an agent's own decisions: rewards that arrive while it is idle are added to its latest decision
undiscounted, and idle rows are stepped over.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core.types import Array, Experience


def advantages(
    experience: Experience, rewards: Array, values: Array, bootstrap: Array, gamma: float, trace: float
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
        np.float32(trace),
        advantage.reshape(shape[0], -1),
        valid.reshape(shape[0], -1),
    )
    return advantage, np.where(valid, advantage + values[:-1], np.float32(0)), valid


@njit(cache=True)
def _scan(  # type: ignore[no-untyped-def]  # Numba infers these
    reward, value, bootstrap, active, terminated, truncated, acting, gamma, trace, advantage, valid
) -> None:
    rows, lanes = reward.shape
    carried = np.zeros(lanes, np.float32)  # advantage of the next decision
    following = value[rows].copy()  # value of the next decision
    gained = np.zeros(lanes, np.float32)  # reward since this decision
    closed = acting.copy()  # is there a next decision or an end?
    for t in range(rows - 1, -1, -1):
        for i in range(lanes):
            if terminated[t, i] or truncated[t, i]:
                carried[i] = 0
                gained[i] = 0
                following[i] = bootstrap[t, i] if truncated[t, i] else 0
                closed[i] = True
            gained[i] += reward[t, i]
            if active[t, i]:
                if closed[i]:
                    delta = gained[i] + gamma * following[i] - value[t, i]
                    carried[i] = delta + gamma * trace * carried[i]
                    advantage[t, i] = carried[i]
                    valid[t, i] = True
                following[i] = value[t, i]
                gained[i] = 0
                closed[i] = True
