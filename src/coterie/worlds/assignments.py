"""Text states of teams that share out goals: the goals to which nobody else is closer, nearest first.

The grid world and simple_spread describe themselves to planners with it; a skill is the way to one goal. Goals that
another agent is closer to are left out, unless that is true of all: a small model copies better than it compares.
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
    the base L + 1 name the goals to which nobody else is closer, or all if there are none, nearest first.
    """
    rows, goals = own.shape
    found = np.zeros(rows, np.int64)
    free, left = np.empty(goals, np.bool_), np.empty(goals, np.bool_)
    for r in range(rows):
        for k in range(goals):
            free[k] = known[r, k]
            for b in range(others.shape[1]):
                free[k] &= others[r, b, k] >= own[r, k]
        left[:] = free if free.any() else known[r]
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
