"""What decisions see and lead to, for who values them: next observations, and a value for every distinct one.

γ counts an agent's own decisions, so what follows a decision is what the agent sees when it decides next, however many
ticks later. Nothing here asks a model; `reward.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.roles.remembered import Remembered
from coterie.types import Array, Experience, Tree, map_tree

END, OPEN = -1, -2  # what follows a decision: a true end, or nothing that is known yet


class Following(NamedTuple):
    """What follows every decision, by places in `seen`."""

    at: Array  # [T, N, A] int: place of the decision's own observation
    next: Array  # [T, N, A] int: of what its agent saw next; END or OPEN. Only rows of closed decisions count
    last: Array  # [T, N, A] bool: the agent's episode ended, or was cut short, before it decided again


def following(experience: Experience) -> Following:
    """Where each decision led, scanning backwards over idle ticks."""
    rows, copies, agents = experience.active.shape
    place = np.arange((rows + 1) * copies * agents).reshape(rows + 1, copies, agents)
    cut = place[1:].copy()  # where an agent alone is cut short, its copy goes on and it sees the next row
    for k, (t, n) in enumerate(experience.finals.index.tolist()):
        cut[t, n] = place.size + k * agents + np.arange(agents)
    ahead, over = np.where(experience.acting, place[rows], OPEN), np.zeros((copies, agents), bool)
    found, last = np.empty((rows, copies, agents), np.int64), np.empty((rows, copies, agents), bool)
    for t in range(rows - 1, -1, -1):
        ahead = np.where(experience.terminated[t], END, ahead)
        ahead = np.where(experience.truncated[t], cut[t], ahead)
        over |= experience.terminated[t] | experience.truncated[t]
        found[t], last[t] = ahead, over
        ahead, over = np.where(experience.active[t], place[t], ahead), over & ~experience.active[t]
    return Following(place[:-1], found, last)


def seen(experience: Experience, places: Array) -> Tree:
    """The observations `[R, …]` at such places: rows first, then last observations of copies that were cut short."""
    tree: Tree = map_tree(
        lambda rows, finals: np.concatenate([rows.reshape(-1, *rows.shape[3:]), finals.reshape(-1, *rows.shape[3:])])[
            places
        ],
        experience.observation,
        experience.finals.observation,
    )
    return tree


class Values:
    """Values of observations: those that are equal to the last bit are valued once.

    What has no value (NaN) is not kept, so that a model which may not answer now can be asked again.
    """

    def __init__(self, value: Callable[[Tree, Array], Array]) -> None:
        """`value` gives values `[R]` of observations `[R, …]` with their tags `[R]`."""
        self.remembered = Remembered(lambda seen, tags: value(seen, tags).tolist(), lambda found: not np.isnan(found))

    @property
    def distinct(self) -> int:
        return len(self.remembered.known)

    def of(self, observation: Tree, tags: Array | None = None) -> Array:
        """[R] float64; rows with different tags differ, whatever they show."""
        return np.array(self.remembered.of(observation, tags), np.float64)
