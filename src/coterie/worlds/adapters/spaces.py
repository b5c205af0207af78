"""From Gymnasium's spaces to ours, and from a guest's values into our arrays, checked on the way.

Observations of any nesting become one array or a flat dict of arrays ("a/b", tuples count "0", "1"); each
value is written once, straight into its place. Text is left out. Nothing here steps an environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import gymnasium
import numpy as np

from coterie.core.types import (
    ActionSpace,
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    Tree,
)
from coterie.worlds.adapters.batch import Mismatch, shown

Channels = Literal["auto", "first", "last"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaf:
    """One array of an observation: where the guest keeps it and how it is written."""

    path: Path
    space: Box | Discrete
    shape: tuple[int, ...]  # as the guest gives it
    dtype: np.dtype[Any]
    start: Any = 0  # what the guest counts from
    last: bool = False  # the guest puts channels last, we first
    scale: Array | None = None  # to divide by


@dataclass(frozen=True)
class Reading:
    """How a guest's observation becomes ours."""

    space: ObservationSpace
    leaves: dict[str, Leaf]
    mask: Path | None  # where the legal actions stand
    notes: tuple[str, ...]  # what was left out


# Observations -----------------------------------------------------------------------------------------


def read_observation(space: Any, channels: Channels = "auto", scales: Mapping[str, Any] | None = None) -> Reading:
    """Our space for a Gymnasium space. `scales` names leaves to divide, which then lie in [0, 1]."""
    leaves: dict[str, Leaf] = {}
    texts: list[str] = []
    masks: list[Path] = []
    for path, part in _flatten(space, ()):
        name = "/".join(map(str, path))
        if part.dtype is not None and part.dtype.kind == "U":  # Text, and MiniGrid's missions
            texts.append(name)
        elif path and path[-1] == "action_mask" and len(path) == 1:
            masks.append(path)
        else:
            leaves[name] = _leaf(path, part, channels, (scales or {}).get(name))
    if not leaves:
        raise CoterieError(f"nothing to observe is left of {space}: text is not read")
    notes = (f"text left out of the observation: {', '.join(texts)}",) if texts else ()
    bare = [*leaves] == [""] or (masks and [*leaves] == ["observation"])
    ours: ObservationSpace = Dict({name: leaf.space for name, leaf in leaves.items()})
    if bare:
        ours = next(iter(leaves.values())).space
    return Reading(ours, leaves, masks[0] if masks else None, notes)


def _flatten(space: Any, path: Path) -> list[tuple[Path, Any]]:
    parts: list[tuple[str | int, Any]]
    if isinstance(space, gymnasium.spaces.Dict):
        parts = list(space.spaces.items())
    elif isinstance(space, gymnasium.spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        return [(path, space)]
    return [found for key, part in parts for found in _flatten(part, (*path, key))]


def _leaf(path: Path, space: Any, channels: Channels, scale: Any) -> Leaf:
    match space:
        case gymnasium.spaces.Discrete():
            return Leaf(path, Discrete(int(space.n)), (), np.dtype(np.int64), int(space.start))
        case gymnasium.spaces.MultiDiscrete():
            high = (space.nvec - 1).astype(np.float32)
            return Leaf(path, Box(high.shape, 0.0, high), high.shape, space.dtype, space.start)
        case gymnasium.spaces.MultiBinary():
            return Leaf(path, Box(space.shape, 0.0, 1.0), space.shape, space.dtype)
        case gymnasium.spaces.Box():
            return _box_leaf(path, space, channels, scale)
    raise CoterieError(f"cannot observe {type(space).__name__} spaces ({'/'.join(map(str, path)) or 'observation'})")


def _box_leaf(path: Path, space: Any, channels: Channels, scale: Any) -> Leaf:
    last = len(space.shape) == 3 and (channels == "last" or (channels == "auto" and _channels_last(space.shape)))
    shape = (space.shape[2], *space.shape[:2]) if last else space.shape
    if scale is not None:
        return Leaf(path, Box(shape, 0.0, 1.0), space.shape, space.dtype, 0, last, np.asarray(scale, np.float32))
    bytes_ = space.dtype == np.uint8 and bool((space.high == 255).all())
    with np.errstate(over="ignore"):  # float64's largest number is infinite as float32
        low, high = (_narrow(np.moveaxis(b, 2, 0) if last else b) for b in (space.low, space.high))
    ours = Box(shape, 0.0, 255.0, "uint8") if bytes_ else Box(shape, low, high)
    return Leaf(path, ours, space.shape, space.dtype, 0, last)


def _channels_last(shape: tuple[int, ...]) -> bool:
    """[H, W, C] or [C, H, W]? Equal neighbours are height and width; otherwise channels are the fewest."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last < first


def _narrow(bound: Array) -> Array | float:
    """One number where all bounds are equal."""
    bound = np.asarray(bound, np.float32)
    return float(bound.flat[0]) if bound.size and (bound == bound.flat[0]).all() else bound


# Writing ----------------------------------------------------------------------------------------------


def write_into(reading: Reading, row: Tree, agent: int, mask: Array | None) -> Callable[[Any], None]:
    """A function that checks one agent's observation and writes it into its row `[A, …]`."""
    parts = [
        (leaf.path, _writer(name, leaf, row[name] if isinstance(row, dict) else row, agent))
        for name, leaf in reading.leaves.items()
    ]
    if reading.mask is not None and mask is not None:
        parts.append((reading.mask, lambda value: write_mask(value, mask[agent])))
    if len(parts) == 1 and parts[0][0] == ():
        return parts[0][1]

    def write(value: Any) -> None:
        for path, put in parts:
            part = value
            for key in path:
                try:
                    part = part[key]
                except (KeyError, IndexError, TypeError):
                    keys = [*part] if isinstance(part, Mapping) else shown(part)
                    raise Mismatch(f"an observation with entry {'/'.join(map(str, path))!r}", keys) from None
            put(part)

    return write


def _writer(name: str, leaf: Leaf, row: Array, agent: int) -> Callable[[Any], None]:
    label = f"observation {name}".strip()
    if isinstance(leaf.space, Discrete):
        return _number_writer(label, leaf, row, agent)
    target = row[agent : agent + 1].reshape(row.shape[1:])
    if leaf.last:
        target = np.moveaxis(target, 0, -1)
    shape, dtype, start, scale = leaf.shape, leaf.dtype, leaf.start, leaf.scale
    zeros = np.zeros(shape, dtype) if dtype.kind == "f" else None
    few = zeros is not None and len(shape) == 1 and shape[0] <= 24
    shifted = bool(np.any(start))
    ndarray, vdot = np.ndarray, np.vdot  # looked up once: this runs for every copy at every step

    def write(value: Any) -> None:
        if type(value) is not ndarray or value.dtype != dtype or value.shape != shape:
            value = _accepted(label, leaf, value)
        if few:  # on a few numbers Python's sum is faster than NumPy's; it may overflow, so look again
            if not isfinite(sum(value.tolist())):
                _refuse_infinite(label, value)
        # 0·x is 0 exactly when x is finite, so one product finds NaN and infinity without overflowing.
        elif zeros is not None and vdot(value, zeros) != 0.0:
            _refuse_infinite(label, value)
        if scale is not None:
            np.divide(value, scale, out=target)
        else:
            target[...] = value - start if shifted else value

    return write


def _refuse_infinite(label: str, value: Array) -> None:
    places = np.argwhere(~np.isfinite(value))
    if len(places):
        where = tuple(map(int, places[0]))
        raise Mismatch(f"finite numbers in {label}", f"{value[where]} at {list(where)}")


def _number_writer(label: str, leaf: Leaf, row: Array, agent: int) -> Callable[[Any], None]:
    assert isinstance(leaf.space, Discrete)
    start, n = leaf.start, leaf.space.n

    def write(value: Any) -> None:
        if not isinstance(value, int | np.integer):
            if not (isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"):
                raise Mismatch(f"{label} to be a whole number", shown(value))
            value = int(value)
        if not start <= value < start + n:
            raise Mismatch(f"{label} in {start} … {start + n - 1}", value)
        row[agent] = value - start

    return write


def _accepted(label: str, leaf: Leaf, value: Any) -> Array:
    """The value as an array of the promised shape and a type that loses nothing."""
    if not isinstance(value, np.ndarray | np.generic | float | int):
        raise Mismatch(f"{label} to be an array", shown(value))
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise Mismatch(f"{label} of shape {leaf.shape}", array.shape)
    plain = isinstance(value, float | int)
    if not plain and not np.can_cast(array.dtype, leaf.dtype, "safe"):
        raise Mismatch(f"{label} of type {leaf.dtype}", array.dtype)
    return array.astype(leaf.dtype)


def write_mask(value: Any, target: Array) -> None:
    """Write legal actions, which some call 0 and 1, others False and True."""
    mask = np.asarray(value)
    if mask.shape != target.shape:
        raise Mismatch(f"action_mask of shape {target.shape}", mask.shape)
    target[...] = mask != 0


# Actions ----------------------------------------------------------------------------------------------


def read_action(space: Any) -> ActionSpace:
    """Our space for a Gymnasium space of actions."""
    match space:
        case gymnasium.spaces.Discrete():
            return Discrete(int(space.n))
        case gymnasium.spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return MultiDiscrete(tuple(map(int, space.nvec)))
        case gymnasium.spaces.MultiBinary() if len(space.shape) == 1:
            return MultiDiscrete((2,) * space.shape[0])
        case gymnasium.spaces.Box() if space.dtype.kind == "f":
            with np.errstate(over="ignore"):
                return Box(space.shape, _narrow(space.low), _narrow(space.high))
        case gymnasium.spaces.Box():
            raise CoterieError(
                f"actions {space}: a Box of whole numbers is not played; "
                "the environment's author can declare it as MultiDiscrete"
            )
    raise CoterieError(
        f"actions {space}: only Discrete, MultiDiscrete, MultiBinary and Box of floats are played, each of them alone"
    )


def read_from(space: Any, row: Array, agent: int) -> Callable[[], Any]:
    """A function that gives one agent's action, as its environment wants it, from the row `[A, …]`."""
    match space:
        case gymnasium.spaces.Discrete():
            start = int(space.start)
            return (lambda: row.item(agent) + start) if start else (lambda: row.item(agent))
        case gymnasium.spaces.MultiDiscrete():
            return lambda: (row[agent] + space.start).astype(space.dtype)
    return lambda: row[agent].astype(space.dtype)


class TrustedDiscrete(gymnasium.spaces.Discrete):
    """Discrete whose membership test costs nothing; many environments ask it at every step."""

    def contains(self, x: Any) -> bool:
        return bool(self.start <= x < self.start + self.n)


def trust_choices(space: Any) -> None:
    """Let an environment's own space test membership cheaply: our actions are integers, checked already."""
    if type(space) is gymnasium.spaces.Discrete:
        space.__class__ = TrustedDiscrete  # keeps the space's own state, random stream included
