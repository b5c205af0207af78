"""Text states of teams that divide goals among themselves: an agent's goals, the best one first.

The grid world and simple_spread describe themselves to planners with it; a skill is the path to one goal. There are two
orders. `number_by_turns` serves the agent that is nearest to a goal first, then the next nearest, and names the goals
that are still free at an agent's turn, nearest first: a planner that names the first one assigns goals greedily.
`number_by_totals` orders all goals by the total distance of the team when the agent takes one and the others divide the
rest optimally: the first ones form the shortest assignment. A small model copies better than it compares; therefore the
text has already compared.
"""

from __future__ import annotations

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")  # names of goals 0, 1, …
MOST_GOALS = 16  # whose numbers fit into 64 bits
MOST_SAMPLES = 24


def goal_names(goals: int) -> tuple[str, ...]:
    """Return the names of goals: colours, then numbers."""
    return tuple(COLOURS[k] if k < len(COLOURS) else f"goal {k + 1}" for k in range(goals))


@jit
def number_by_turns(own: Array, others: Array, known: Array) -> Array:
    """Return the numbers `[R]` of text states in which agents are served by their distance.

    `own [R, L]` and `others [R, B, L]` are distances to the goals, `known [R, L]` says which goals there are. Named
    are the goals that are left at the agent's turn, or all where none is, nearest first.
    """
    (rows, goals), num_others = own.shape, others.shape[1]
    found = np.zeros(rows, np.int64)
    left, waiting = np.empty(goals, np.bool_), np.empty(num_others, np.bool_)
    for r in range(rows):
        left[:], waiting[:] = known[r], True
        while left.any():
            mine = np.inf
            for k in range(goals):
                if left[k]:
                    mine = min(mine, own[r, k])
            agent, goal, least = -1, -1, mine
            for b in range(num_others):
                for k in range(goals):
                    if waiting[b] and left[k] and others[r, b, k] < least:
                        agent, goal, least = b, k, others[r, b, k]
            if agent < 0:
                break  # nobody else comes first
            waiting[agent], left[goal] = False, False
        if not left.any():
            left[:] = known[r]
        found[r] = _number(own[r], left)
    return found


@jit
def number_by_totals(own: Array, others: Array) -> Array:
    """Return the numbers `[R]` of text states in which goals are ordered by the team's total distance.

    `own [R, L]` and `others [R, L − 1, L]` are distances to the goals. `least` has the least total of the first
    others, for every set of goals that they take.
    """
    rows, goals = own.shape
    found = np.zeros(rows, np.int64)
    sets = 1 << goals
    least, total, left = np.empty(sets), np.empty(goals), np.empty(goals, np.bool_)
    for r in range(rows):
        least[:], least[0] = np.inf, 0.0
        for taken in range(1, sets - 1):
            b = -1  # the last of as many others
            for k in range(goals):
                b += taken >> k & 1
            for k in range(goals):
                if taken >> k & 1:
                    least[taken] = min(least[taken], least[taken ^ (1 << k)] + others[r, b, k])
        for k in range(goals):
            total[k] = own[r, k] + least[(sets - 1) ^ (1 << k)]
        left[:] = True
        found[r] = _number(total, left)
    return found


@jit
def _number(cost: Array, left: Array) -> int:
    """Digits to the base L + 1 that name the goals left, the least cost first; empties `left`."""
    order, base = 0, 1
    while left.any():
        best = -1
        for k in range(len(cost)):
            if left[k] and (best < 0 or cost[k] < cost[best]):
                best = k
        left[best] = False
        order += (best + 1) * base
        base *= len(cost) + 1
    return order


class AssignmentText:
    """Texts of the numbers of both orders."""

    prompt = "assignment"

    def __init__(self, goals: int) -> None:
        self.names = goal_names(goals)
        if goals > MOST_GOALS - 1:
            raise ValueError(f"a planner can choose among at most {MOST_GOALS - 1} goals, got {goals}")

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
