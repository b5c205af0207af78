"""Observations and actions as rows of floats: their layout, packing and encoding, and the joint state of all agents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coterie.core.decisions import Joint, StateRows
from coterie.core.types import (
    ActionSpace,
    AgentType,
    Array,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    Text,
    Tree,
    entries_of,
)

EMBEDDED = 512  # an observation that is one choice among more is a number; networks look up its embedding
ONE_HOT = 10_000  # choices up to here are one-hot; more are written digit by digit
BASE = 100  # of these digits


class Entry(NamedTuple):
    """One named part of a packed observation."""

    start: int
    stop: int
    shape: tuple[int, ...]
    space: Box | Discrete


@dataclass(frozen=True)
class Layout:
    """Positions of the parts of an observation in a row of floats."""

    entries: dict[str, Entry]
    sets: tuple[tuple[str, ...], ...]
    size: int
    slots: Array  # [size] which running mean each number belongs to; elements of a set share theirs
    width: int  # number of running means, those of empty sets included
    bare: bool  # the observation is a single array, not a dict

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height, width when the whole observation is an image."""
        first = next(iter(self.entries.values()))
        return first.shape if self.bare and len(first.shape) == 3 else None

    @property
    def bytes(self) -> bool:
        """Whether the whole observation is an image in bytes."""
        space = next(iter(self.entries.values())).space
        return self.image is not None and isinstance(space, Box) and space.dtype == "uint8"

    @property
    def choices(self) -> int:
        """The number of choices, where the whole observation is one choice among many; 0 elsewhere."""
        space = next(iter(self.entries.values())).space if len(self.entries) == 1 else None
        return space.n if self.bare and isinstance(space, Discrete) and space.n > EMBEDDED else 0


class PixelRows(NamedTuple):
    """Rows for a network that reads observations as the world gives them. Arrays or tensors.

    Pictures stay bytes, a quarter of the memory of floats, and one choice among many stays a number.
    """

    image: Any  # [S, M, channels · height · width] uint8, or [S, M, 1] int32
    rest: Any  # [S, M, extra] float32: what skips the encoder


class SharedRows(NamedTuple):
    """Rows of an actor and a critic that share an encoder."""

    actor: Any  # observations, and what skips the encoder: rows or `PixelRows`
    critic: Any  # what the critic reads besides encoded observations


Rows = Any  # an array or tensor `[S, M, size]`, `PixelRows` or `SharedRows`


def map_rows(function: Callable[[Any], Any], rows: Rows) -> Rows:
    """Apply a function to rows, or to every part of pixel rows and shared rows."""
    if isinstance(rows, PixelRows | SharedRows):
        return type(rows)(*(map_rows(function, part) for part in rows))
    return function(rows)


def append_columns(rows: Rows, *columns: Array) -> Rows:
    """Rows `[S, M, size]` with further columns `[S, M, …]`, which skip the encoder."""
    if not columns:
        return rows
    if isinstance(rows, PixelRows):
        return rows._replace(rest=np.concatenate([rows.rest, *columns], axis=-1))
    return np.concatenate([rows, *columns], axis=-1)


class TextError(ValueError):
    """Text was given to something that reads numbers."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"networks have numbers as {what}, and this world's are text; choose a policy that reads and writes text: "
            "'causal_lm', 'writer', 'expert' or 'guess'"
        )


def layout(space: ObservationSpace) -> Layout:
    """Lay out a space in one row."""
    sets = space.sets if isinstance(space, Dict) else ()
    members = {name for names in sets for name in names}
    entries, slots, start, slot = {}, [], 0, 0
    for name, part in entries_of(space).items():
        if isinstance(part, Text):
            raise TextError("observations")
        shape = (sum(digits(part.n)),) if isinstance(part, Discrete) else part.shape
        size = math.prod(shape)
        width = math.prod(shape[1:]) if name in members else size
        entries[name] = Entry(start, start + size, shape, part)
        slots.append(slot + np.arange(size) % max(width, 1))
        start, slot = start + size, slot + width
    return Layout(entries, sets, start, np.concatenate(slots), slot, not isinstance(space, Dict))


def append_features(lay: Layout | None, width: int) -> Layout:
    """The layout with `width` text features appended; None: the features alone."""
    size, slots = (0, 0) if lay is None else (lay.size, lay.width)
    entry = Entry(size, size + width, (width,), Box((width,), -np.inf, np.inf))
    entries, sets, old = ({}, (), np.zeros(0, np.int64)) if lay is None else (lay.entries, lay.sets, lay.slots)
    joined = np.concatenate([old, slots + np.arange(width)])
    return Layout(entries | {"in words": entry}, sets, size + width, joined, slots + width, bare=False)


def pack(lay: Layout, observation: Tree) -> Array:
    """Write observations `[…, shape]` as rows of floats `[…, size]`; bytes become fractions of 255."""
    parts = []
    for name, entry in lay.entries.items():
        array = np.asarray(observation if lay.bare else observation[name])
        if isinstance(entry.space, Discrete):
            parts.append(_one_hot(array, digits(entry.space.n)))
            continue
        lead = array.shape[: array.ndim - len(entry.shape)]
        flat = array.reshape(*lead, entry.stop - entry.start)
        parts.append(flat / np.float32(255) if flat.dtype == np.uint8 else flat.astype(np.float32, copy=False))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def digits(n: int) -> list[int]:
    """The sizes of the one-hot codes of a choice among n: one, or one for each digit, the lowest first."""
    if n <= ONE_HOT:
        return [n]
    sizes = []
    while n > BASE:
        sizes.append(BASE)
        n = -(-n // BASE)
    return [*sizes, n]


def _one_hot(chosen: Array, sizes: Sequence[int]) -> Array:
    """Choices `[…]` as one-hot rows `[…, sum(sizes)]`, one code for each digit."""
    flat = np.asarray(chosen).reshape(-1)
    rows, at, start = np.zeros((len(flat), sum(sizes)), np.float32), np.arange(len(flat)), 0
    for size in sizes:
        rows[at, start + (flat % size if len(sizes) > 1 else flat)] = 1
        flat, start = flat // size, start + size
    return rows.reshape(*np.shape(chosen), sum(sizes))


def encoded_size(space: ActionSpace) -> int:
    """The length of an encoded action."""
    match space:
        case Discrete(n):
            return n
        case MultiDiscrete(sizes):
            return sum(sizes)
        case Box(shape):
            return math.prod(shape)
        case Text():
            raise TextError("actions")


def bounds(space: Box) -> tuple[Array, Array]:
    """Centre and half range of every number of a box `[K]`; numbers without two bounds count as [−1, 1]."""
    low, high = (np.broadcast_to(np.asarray(b, np.float32), space.shape).flatten() for b in (space.low, space.high))
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, np.float32(-1)), np.where(bounded, high, np.float32(1))
    return (low + high) / 2, (high - low) / 2


def finite_bounds(space: Box) -> tuple[Array, Array]:
    """The lower and the upper bound of every number of an action `[K]`; a ValueError where one is missing."""
    low, high = (np.broadcast_to(np.asarray(b, np.float32), space.shape).flatten() for b in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("continuous actions must be bounded on both sides; wrap the world to bound them")
    return low, high


class BoundedBox:
    """A box with two bounds in every number, and how points of [−1, 1] are scaled to it."""

    def __init__(self, space: Box) -> None:
        self.low, self.high = finite_bounds(space)
        self.centre, self.half = bounds(space)

    def stretch(self, point: Array) -> Array:
        """Scale points `[…, K]` of [−1, 1] to the box."""
        return np.clip(self.centre + self.half * point, self.low, self.high)  # the sum may round past a bound


def input_range(lay: Layout, extra: int = 0, scaled: bool = False) -> tuple[Array, Array]:
    """Centre and half range of packed rows `[size + extra]`; unbounded or scaled numbers count as [−1, 1]."""
    centre, half = np.zeros(lay.size + extra, np.float32), np.ones(lay.size + extra, np.float32)
    for entry in () if scaled else lay.entries.values():
        own = slice(entry.start, entry.stop)
        if isinstance(entry.space, Discrete) or entry.space.dtype == "uint8":
            centre[own] = half[own] = 0.5
        else:
            centre[own], half[own] = bounds(entry.space)
    return centre, half


def encode(space: ActionSpace, action: Array) -> Array:
    """Actions `[…, shape]` as rows of floats `[…, K]`: choices one-hot, boxes scaled to [−1, 1]."""
    match space:
        case Discrete(n):
            return _one_hot(action, [n])
        case MultiDiscrete(sizes):
            return np.concatenate([_one_hot(action[..., i], [n]) for i, n in enumerate(sizes)], axis=-1)
        case Box(shape):
            centre, half = bounds(space)
            flat = action.reshape(*action.shape[: action.ndim - len(shape)], len(centre))
            return ((flat - centre) / half).astype(np.float32, copy=False)
        case Text():
            raise TextError("actions")


def joined_size(agent_types: Mapping[str, AgentType]) -> int:
    """The length of all agents' packed observations, concatenated; 0 where some are text."""
    if any(isinstance(agent_type.observation, Text) for agent_type in agent_types.values()):
        return 0
    return sum(layout(agent_type.observation).size * len(agent_type.agents) for agent_type in agent_types.values())


def table_state(joint: Joint) -> StateRows:
    """The world's own state where it has one, else all agents' observations concatenated."""
    if joint.state is not None:
        return joint.state
    rows, finals = [], []
    for group, decisions in joint.decisions.items():
        lay = layout(joint.spaces[group].observation)
        packed = pack(lay, decisions.observation)
        rows.append(packed.reshape(*packed.shape[:2], -1))
        last = pack(lay, decisions.finals.observation)
        finals.append(last.reshape(len(last), last.shape[1] * last.shape[2]))
    return StateRows(np.concatenate(rows, axis=-1), np.concatenate(finals, axis=-1))
