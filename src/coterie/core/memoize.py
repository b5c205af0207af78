"""What is found out about observations, once for all that are equal to the last bit: words, vectors, verdicts, values.

Observations of one moment are the same in many copies and at many ticks, and putting them into words, or asking a model
about them, takes longer than comparing their bytes. What is found out is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from coterie.core.types import Array, Tree, leading, map_tree

REMEMBERED = 200_000  # distinct observations
Found = TypeVar("Found")


class Remembered(Generic[Found]):
    """One thing for each distinct observation."""

    def __init__(
        self, find: Callable[[Tree, Array], Sequence[Found]], keep: Callable[[Found], bool] = lambda found: True
    ) -> None:
        """`find` is given distinct observations `[R, …]` and their tags `[R]`; what `keep` turns down is found anew."""
        self.find, self.keep = find, keep
        self.known: dict[bytes, Found] = {}

    def of(self, observation: Tree, tags: Array | None = None) -> list[Found]:
        """What belongs to each of `[R, …]` observations; rows with different tags differ, whatever they show."""
        count = len(leading(observation))
        tags = np.zeros(count, np.int64) if tags is None else tags.astype(np.int64)
        keys = row_keys(observation, tags)
        if len(self.known) > REMEMBERED:
            self.known.clear()
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self.known}
        fresh: dict[bytes, Found] = {}
        if first:
            rows = np.array(sorted(first.values()))
            made = self.find(map_tree(lambda a: a[rows], observation), tags[rows])
            fresh = {keys[row]: found for row, found in zip(rows.tolist(), made, strict=True)}
            self.known.update((key, found) for key, found in fresh.items() if self.keep(found))
        return [fresh[key] if key in fresh else self.known[key] for key in keys]


def row_keys(observation: Tree, tags: Array) -> list[bytes]:
    """The bytes of each of `[R, …]` observations and its tag `[R]`."""
    parts = [*(observation.values() if isinstance(observation, dict) else [observation]), tags]
    flat = [np.ascontiguousarray(part.reshape(len(tags), -1)).view(np.uint8) for part in parts if part.size]
    whole = np.concatenate(flat, axis=1) if flat else np.zeros((len(tags), 0), np.uint8)
    buffer, width = whole.tobytes(), whole.shape[1]
    return [buffer[row * width : (row + 1) * width] for row in range(len(tags))]
