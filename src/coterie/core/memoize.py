"""Memoises functions of observations.

Equal observations occur in many environments and at many steps, and describing one, or asking a model about it, takes
longer than comparing its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from coterie.core.trees import arrays_of, leading, map_tree
from coterie.core.types import Array, Tree

CAPACITY = 200_000  # distinct observations
Found = TypeVar("Found")


class Memoized(Generic[Found]):
    """A function of observations, called once for each distinct one."""

    def __init__(
        self, find: Callable[[Tree, Array], Sequence[Found]], keep: Callable[[Found], bool] = lambda found: True
    ) -> None:
        """`find` takes distinct observations `[R, …]` and tags `[R]`; results that `keep` rejects are not stored."""
        self.find, self.keep = find, keep
        self.known: dict[bytes, Found] = {}

    def of(self, observation: Tree, tags: Array | None = None) -> list[Found]:
        """The result for each of `[R, …]` observations; rows with different tags count as different."""
        count = len(leading(observation))
        tags = np.zeros(count, np.int64) if tags is None else tags.astype(np.int64)
        keys = row_keys(observation, tags)
        if len(self.known) > CAPACITY:
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
    parts = [*arrays_of(observation).values(), tags]
    flat = [np.ascontiguousarray(part.reshape(len(tags), -1)).view(np.uint8) for part in parts if part.size]
    whole = np.concatenate(flat, axis=1) if flat else np.zeros((len(tags), 0), np.uint8)
    buffer, width = whole.tobytes(), whole.shape[1]
    return [buffer[row * width : (row + 1) * width] for row in range(len(tags))]
