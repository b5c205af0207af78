"""Replay buffers of off-policy learners: a ring of rows, drawn uniformly or by priority through a sum tree.

A row is what the learner's NamedTuple of arrays `[rows, …]` holds. Prioritised replay is the proportional variant of
Schaul et al. 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from coterie.core.jit import jit
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, State
from coterie.core.validation import at_least, within

Row = TypeVar("Row", bound=tuple[Array, ...])
SMALL = 1e-6  # added to every error, so that no row's priority is zero (Schaul et al. 2016, section 3.3)


@dataclass(frozen=True)
class ReplaySettings(Settings):
    """Settings of a replay buffer."""

    size: int = 100_000  # rows kept; older ones are overwritten
    learning_starts: int = 1_000  # rows that must be stored before learning starts
    priority: float = 0.6  # exponent α of the priorities; 0: all rows are equally likely
    importance: float = 0.4  # exponent β of the importance weights at the start, growing to 1 over the run

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "size": Choice((10_000, 50_000, 100_000)),
        "priority": Choice((0.0, 0.4, 0.6, 0.8)),
    }

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("learning_starts", self.learning_starts, 1)
        if self.learning_starts > self.size:
            raise ValueError(
                f"learning_starts must be at most size ({self.size}), or learning never starts; "
                f"got {self.learning_starts}"
            )
        within("priority", self.priority, 0, 1)
        within("importance", self.importance, 0, 1)


@dataclass(frozen=True)
class MemorySettings(Settings):
    """Settings of a replay buffer without priorities."""

    size: int = 100_000  # time steps kept; older ones are overwritten
    learning_starts: int = 1_000  # time steps that must be stored before learning starts

    SEARCH: ClassVar[Space] = {"size": Choice((10_000, 100_000, 500_000))}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        self.uniform()

    def uniform(self) -> ReplaySettings:
        """The settings of a replay without priorities."""
        return ReplaySettings(self.size, self.learning_starts, priority=0.0)


class Drawn(NamedTuple):
    """The rows that were drawn, and their importance weights."""

    rows: Array  # [B] int64
    weight: Array  # [B] float32, at most 1


# The tree ---------------------------------------------------------------------------------------------
# Node k has the children 2k and 2k + 1 and holds their sum; the leaves begin at `base`, a power of two.


@jit
def set_leaves(nodes: Array, index: Array, value: Array) -> None:
    """Write leaves and recompute every sum above them, level by level."""
    base = len(nodes) // 2
    at = np.empty(len(index), np.int64)
    for i in range(len(index)):
        at[i] = base + index[i]
        nodes[at[i]] = value[i]
    level = base
    while level > 1:
        level //= 2
        for i in range(len(at)):
            at[i] //= 2
            nodes[at[i]] = nodes[2 * at[i]] + nodes[2 * at[i] + 1]


@jit
def find_leaves(nodes: Array, uniform: Array, found: Array) -> None:
    """The leaves at which the cumulated priority passes `(i + uniform[i]) / B` of the total (stratified).

    All draws go down one level together: their memory accesses overlap, which is three times faster than
    one after the other in a tree larger than the cache.
    """
    base, count = len(nodes) // 2, len(found)
    left = np.empty(count)
    for i in range(count):
        left[i] = (i + uniform[i]) / count * nodes[1]
        found[i] = 1
    level = 1
    while level < base:
        for i in range(count):
            child = 2 * found[i]
            right = left[i] >= nodes[child]
            left[i] -= nodes[child] * right  # without a branch, which would be mispredicted every other time
            found[i] = child + right
        level *= 2
    for i in range(count):
        while nodes[found[i]] == 0 and found[i] > base:  # rounding may lead past the last leaf above 0
            found[i] -= 1
        found[i] -= base


@jit
def draw(nodes: Array, size: int, uniform: Array, importance: float, index: Array, weight: Array) -> None:
    """Draw rows into `index` and their importance weights into `weight` (Schaul et al. 2016, section 3.4).

    Without a tree (`nodes` empty) all rows are equally likely and weigh 1.
    """
    if len(nodes) == 0:
        for i in range(len(index)):
            index[i] = int(uniform[i] * size)
            weight[i] = 1
        return
    find_leaves(nodes, uniform, index)
    base, top = len(nodes) // 2, np.float32(0)
    for i in range(len(index)):
        weight[i] = (size * nodes[base + index[i]] / nodes[1]) ** -importance
        top = max(top, weight[i])
    for i in range(len(index)):
        weight[i] /= top


@jit
def set_priorities(nodes: Array, index: Array, error: Array, exponent: float) -> float:
    """Set the priorities of rows from their errors `[B]`; returns the largest error."""
    top, priority = 0.0, np.empty(len(index))
    for i in range(len(index)):
        top = max(top, abs(error[i]))
        priority[i] = (float(abs(error[i])) + SMALL) ** exponent
    set_leaves(nodes, index, priority)
    return top


# The ring ---------------------------------------------------------------------------------------------


class Replay(Generic[Row]):
    """The latest rows of experience, each with a priority where `priority` is above 0."""

    def __init__(self, settings: ReplaySettings, like: Row) -> None:
        """`like` gives the shapes and types of the columns; its rows are not stored."""
        self.settings = settings
        make: Any = type(like)
        self.rows: Row = make(*(np.zeros((settings.size, *a.shape[1:]), a.dtype) for a in like))
        self.position, self.size = 0, 0
        self.top = 1.0  # the highest priority so far; new rows get it
        base = 1 << (settings.size - 1).bit_length()
        self.nodes = np.zeros(2 * base if settings.priority else 0)

    @property
    def ready(self) -> bool:
        """Whether there is enough to learn from."""
        return self.size >= self.settings.learning_starts

    def add(self, rows: Row) -> None:
        """Append rows, overwriting the oldest."""
        size, count = self.settings.size, len(rows[0])
        at = (self.position + np.arange(count)) % size
        kept = slice(max(count - size, 0), None)  # of more rows than the ring holds, the last ones
        for column, new in zip(self.rows, rows, strict=True):
            column[at[kept]] = new[kept]
        self.position = int((self.position + count) % size)
        self.size = min(self.size + count, size)
        self.prioritise(at[kept], np.full(len(at[kept]), self.top))

    def sample(self, uniform: Array, importance: float = 1.0) -> Drawn:
        """Draw one row for each number in `uniform [B]`."""
        if self.size == 0:
            raise ValueError("the replay buffer is empty: add rows before sampling")
        index, weight = np.empty(len(uniform), np.int64), np.empty(len(uniform), np.float32)
        self.draw(uniform, importance, index, weight)
        return Drawn(index, weight)

    def draw(self, uniform: Array, importance: float, index: Array, weight: Array) -> None:
        """`sample` into arrays `[B]`."""
        draw(self.nodes, self.size, uniform, importance, index, weight)

    def prioritise(self, index: Array, priority: Array) -> None:
        """Set the priorities of rows, before the exponent: their absolute errors."""
        if not self.settings.priority:
            return
        wrong = ~(np.isfinite(priority) & (priority >= 0))
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(f"a priority must be a number of at least 0, got {priority[at]:g} for row {index[at]}")
        if len(index) and (index.min() < 0 or index.max() >= self.size):
            raise ValueError(f"rows 0 to {self.size - 1} can have a priority, got {index.min()} to {index.max()}")
        self.top = max(self.top, float(priority.max(initial=0)))
        set_leaves(self.nodes, index, (priority + SMALL) ** self.settings.priority)

    def learned(self, index: Array, error: Array) -> None:
        """Set priorities from what was just learned: the errors `[B]` of rows."""
        if self.settings.priority:
            self.top = max(self.top, set_priorities(self.nodes, index, error, self.settings.priority))

    def state(self) -> State:
        """The whole buffer, without rows that were never written."""
        base = len(self.nodes) // 2
        return {
            "rows": {name: column[: self.size].copy() for name, column in self.rows._asdict().items()},  # type: ignore[attr-defined]  # a NamedTuple
            "priorities": self.nodes[base : base + self.size].copy(),
            "priority": self.settings.priority,
            "position": self.position,
            "top": self.top,
        }

    def load(self, state: State, where: str = "") -> None:
        """Return to a saved state; `where` names the group in errors."""
        try:
            self._load(state)
        except ValueError as error:
            raise ValueError(f"{where}: {error}" if where else str(error)) from None

    def _load(self, state: State) -> None:
        size = len(next(iter(state["rows"].values())))
        if size > self.settings.size:
            raise ValueError(f"the saved replay holds {size} rows, replay.size is {self.settings.size}")
        if size < self.settings.size and state["position"] != size:
            raise ValueError(
                f"the saved replay was full at {size} rows; replay.size cannot become {self.settings.size}"
            )
        for name, column in self.rows._asdict().items():  # type: ignore[attr-defined]  # a NamedTuple
            if column.shape[1:] != state["rows"][name].shape[1:]:
                raise ValueError(f"the saved replay's '{name}' has another shape than this world's")
            column[:size] = state["rows"][name]
        self.position, self.size, self.top = state["position"], size, state["top"]
        if state["priority"] != self.settings.priority:
            raise ValueError(f"the saved replay has the exponent {state['priority']:g}; replay.priority cannot change")
        if self.settings.priority:
            self.nodes[:] = 0  # rows that were stored before must not be drawn
            set_leaves(self.nodes, np.arange(size), state["priorities"])
