"""What decisions see and lead to, for who values them: next observations, and a value for every distinct one.

γ counts an agent's own decisions, so what follows a decision is what the agent sees when it decides next, however many
ticks later. Nothing here asks a model; `reward.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.types import Array, Experience, Tree, leading, map_tree

END, OPEN = -1, -2  # what follows a decision: a true end, or nothing that is known yet
REMEMBERED = 200_000  # distinct observations


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


class Remembered:
    """Values of observations: those that are equal to the last bit are valued once.

    What has no value (NaN) is not kept, so that a model which may not answer now can be asked again.
    """

    def __init__(self, value: Callable[[Tree, Array], Array]) -> None:
        """`value` gives values `[R]` of observations `[R, …]` with their tags `[R]`."""
        self.value = value
        self.known: dict[bytes, float] = {}

    def values(self, observation: Tree, tags: Array | None = None) -> Array:
        """[R] float64; rows with different tags differ, whatever they show."""
        count = len(leading(observation))
        tags = np.zeros(count, np.int64) if tags is None else tags.astype(np.int64)
        parts = [*(observation.values() if isinstance(observation, dict) else [observation]), tags]
        raw = np.concatenate([_bytes(part, count) for part in parts], axis=1)
        keys = [row.tobytes() for row in raw]
        if len(self.known) > REMEMBERED:
            self.known.clear()
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.known}
        if first:
            new = np.array(sorted(first.values()))
            found = self.value(map_tree(lambda a: a[new], observation), tags[new])
            fresh = {keys[i]: float(value) for i, value in zip(new.tolist(), found.tolist(), strict=True)}
            self.known.update((key, value) for key, value in fresh.items() if not np.isnan(value))
        return np.array([self.known.get(key, np.nan) for key in keys])


def _bytes(part: Array, count: int) -> Array:
    flat = np.ascontiguousarray(part.reshape(count, -1))
    return flat.view(np.uint8).reshape(count, flat.shape[1] * flat.itemsize)
