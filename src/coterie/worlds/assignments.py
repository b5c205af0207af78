"""Text states of teams that share out goals: the goals left to an agent, nearest first.

The grid world and simple_spread describe themselves to planners with it; a skill is the way to one goal. The agent that
is nearest to a goal is served first, then the next nearest: an agent's text names the goals that are still free when
its turn comes. So a planner that names the first goal assigns goals greedily, and one that knows better may differ. A
small model copies better than it compares; therefore the text compares for it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core.types import Array

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")  # names of goals 0, 1, …
MOST_GOALS = 16  # whose numbers fit into 64 bits
MOST_SAMPLES = 24


def goal_names(goals: int) -> tuple[str, ...]:
    """Return the names of goals: colours, then numbers."""
    return tuple(COLOURS[k] if k < len(COLOURS) else f"goal {k + 1}" for k in range(goals))


@njit(cache=True)
def number_states(own: Array, others: Array, known: Array) -> Array:
    """Return the numbers `[R]` of text states.

    `own [R, L]` and `others [R, B, L]` are distances to the goals, `known [R, L]` says which goals there are. Digits to
    the base L + 1 name the goals that are left at the agent's turn, or all where none is, nearest first.
    """
    (rows, goals), company = own.shape, others.shape[1]
    found = np.zeros(rows, np.int64)
    left, waiting = np.empty(goals, np.bool_), np.empty(company, np.bool_)
    for r in range(rows):
        left[:], waiting[:] = known[r], True
        while left.any():
            mine = np.inf
            for k in range(goals):
                if left[k]:
                    mine = min(mine, own[r, k])
            agent, goal, least = -1, -1, mine
            for b in range(company):
                for k in range(goals):
                    if waiting[b] and left[k] and others[r, b, k] < least:
                        agent, goal, least = b, k, others[r, b, k]
            if agent < 0:
                break  # nobody else comes first
            waiting[agent], left[goal] = False, False
        if not left.any():
            left[:] = known[r]
        order, base = 0, 1
        while left.any():
            best = -1
            for k in range(goals):
                if left[k] and (best < 0 or own[r, k] < own[r, best]):
                    best = k
            left[best] = False
            order += (best + 1) * base
            base *= goals + 1
        found[r] = order
    return found


class AssignmentText:
    """Texts of the numbers of `number_states`."""

    prompt = "assignment"

    def __init__(self, goals: int) -> None:
        self.names = goal_names(goals)
        if goals > MOST_GOALS - 1:
            raise ValueError(f"a planner can be told of at most {MOST_GOALS - 1} goals, got {goals}")

    def describe(self, number: int) -> str:
        """Such as `places: red, blue`."""
        order, names = int(number), []
        while order:
            order, digit = divmod(order, len(self.names) + 1)
            names.append(self.names[digit - 1])
        return f"places: {', '.join(names) or 'none'}"

    def samples(self) -> list[str]:
        """Texts in which each goal comes first equally often, with more and with fewer others after it."""
        found = []
        for more in range(len(self.names)):
            for first in range(len(self.names)):
                names = [self.names[(first + i) % len(self.names)] for i in range(more + 1)]
                found.append(f"places: {', '.join(names)}")
        return found[-MOST_SAMPLES:]
