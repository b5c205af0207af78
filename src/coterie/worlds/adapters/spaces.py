"""Convert Gymnasium's spaces to ours, and check and write an environment's values into our arrays.

Nested observations become one array or a flat dict of arrays (keys "a/b"; items of tuples are "0", "1"). Each
value is written once, directly into its row. Text becomes bytes, or is left out. Actions are in `actions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import gymnasium
import numpy as np

from coterie.core.types import (
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    ObservationSpace,
    Tree,
)
from coterie.worlds.adapters.batch import InvalidEnvOutput, Warn, type_and_value

LARGE_PICTURE = 128 * 128  # pixels; a network on more of them is slow
Channels = Literal["auto", "first", "last"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Entry:
    """One array of an observation: its path in the environment's observation, and how it is converted."""

    path: Path
    space: Box | Discrete  # ours
    shape: tuple[int, ...]  # the environment's
    dtype: np.dtype[Any]  # the environment's
    start: Any = 0  # the environment's smallest value; ours is 0
    channels_last: bool = False  # the environment puts channels last, we put them first
    scale: Array | None = None  # divisor


@dataclass(frozen=True)
class ObservationLayout:
    """The mapping from an environment's observation to ours."""

    space: ObservationSpace
    entries: dict[str, Entry]
    mask: Path | None  # path of the action mask
    warnings: tuple[str, ...]  # what was left out
    texts: tuple[str, ...] = ()  # entries that hold text as bytes


# Observations -----------------------------------------------------------------------------------------


def convert_observation_space(
    space: Any, channels: Channels = "auto", scales: Mapping[str, Any] | None = None, text: bool = False
) -> ObservationLayout:
    """Our space for a Gymnasium space. `scales` holds divisors of entries, whose values then lie in [0, 1]."""
    entries: dict[str, Entry] = {}
    texts: list[str] = []  # left out
    empty: list[str] = []  # left out
    kept: list[str] = []
    renamed: list[str] = []
    masks: list[Path] = []
    for path, part in _flatten(space, ()):
        name = _unused_name("/".join(map(str, path)), entries)
        if name != "/".join(map(str, path)):
            renamed.append(f"a second entry '{'/'.join(map(str, path))}' of the observation is called '{name}'")
        if part.dtype is not None and part.dtype.kind == "U":  # Text, and MiniGrid's missions
            if text and isinstance(part, gymnasium.spaces.Text):
                kept.append(name)
                entries[name] = _text_entry(path, part)
            else:
                texts.append(name)
        elif part.shape and 0 in part.shape:
            empty.append(name)
        elif path and path[-1] == "action_mask" and len(path) == 1:
            masks.append(path)
        else:
            entries[name] = _entry(path, part, channels, (scales or {}).get(name))
    if not entries:
        cure = "world.text: true keeps text for language models" if texts else "declare a constant, Box(0, 1, (1,))"
        raise CoterieError(f"observations {space}: nothing is left to observe; {cure}")
    warnings = tuple(renamed)
    warnings += (f"text left out of the observation: {', '.join(texts)}",) * bool(texts)
    warnings += (f"entries without numbers left out of the observation: {', '.join(empty)}",) * bool(empty)
    single = [*entries] == [""] or (masks and [*entries] == ["observation"])
    ours: ObservationSpace = Dict({name: entry.space for name, entry in entries.items()})
    if single:
        ours = next(iter(entries.values())).space
        warnings += _large_picture(ours)
    names = tuple("" if single else name for name in kept)
    return ObservationLayout(ours, entries, masks[0] if masks else None, warnings, names)


def _large_picture(space: ObservationSpace) -> tuple[str, ...]:
    """A warning about pictures of many pixels, if the observation is one."""
    if not isinstance(space, Box) or space.dtype != "uint8" or len(space.shape) != 3:
        return ()
    _, height, width = space.shape
    if height * width <= LARGE_PICTURE:
        return ()
    cure = "world.resize: [84, 84] and world.grey: true make networks smaller and many times faster"
    return (f"observations are pictures of {height}×{width} pixels; {cure}",)


def demand_space(space: Any, where: str, attribute: str) -> None:
    """Refuse what is no space of Gymnasium: a space of the old gym, or one that the environment does not declare."""
    if not isinstance(space, gymnasium.Space):
        raise CoterieError(
            f"{where}: {type_and_value(space)} is not a space of Gymnasium; declare {attribute} in the environment "
            "with gymnasium.spaces"
        )


def _unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name itself, or with a number if another path has it: {"a/b": …} and {"a": {"b": …}}."""
    if name not in taken:
        return name
    return next(f"{name}_{i}" for i in range(2, len(taken) + 3) if f"{name}_{i}" not in taken)


def _flatten(space: Any, path: Path) -> list[tuple[Path, Any]]:
    parts: list[tuple[str | int, Any]]
    if isinstance(space, gymnasium.spaces.Dict):
        parts = list(space.spaces.items())
    elif isinstance(space, gymnasium.spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        demand_space(space, _described(path), "observation_space")
        return [(path, space)]
    return [found for key, part in parts for found in _flatten(part, (*path, key))]


def _described(path: Path) -> str:
    return f"entry '{'/'.join(map(str, path))}' of the observations" if path else "observations"


def _entry(path: Path, space: Any, channels: Channels, scale: Any) -> Entry:
    match space:
        case gymnasium.spaces.Discrete():
            return Entry(path, Discrete(int(space.n)), (), np.dtype(np.int64), int(space.start))
        case gymnasium.spaces.MultiDiscrete():
            high = (space.nvec - 1).astype(np.float32)
            return Entry(path, Box(high.shape, 0.0, high), high.shape, space.dtype, space.start)
        case gymnasium.spaces.MultiBinary():
            return Entry(path, Box(space.shape, 0.0, 1.0), space.shape, space.dtype)
        case gymnasium.spaces.Box():
            return _box_entry(path, space, channels, scale)
    raise CoterieError(
        f"{_described(path)}: {space} is not supported; only Discrete, Box, MultiDiscrete, MultiBinary, and Tuples and "
        "Dicts of them are: pad it to a fixed size in a wrapper of the environment"
    )


def _text_entry(path: Path, space: Any) -> Entry:
    """Text as UTF-8, padded with zeros."""
    widest = max((len(character.encode()) for character in space.character_set), default=1)
    length = int(space.max_length) * widest
    return Entry(path, Box((length,), 0.0, 255.0, "uint8"), (length,), np.dtype("U"))


def _box_entry(path: Path, space: Any, channels: Channels, scale: Any) -> Entry:
    channels_last = len(space.shape) == 3 and (
        channels == "last" or (channels == "auto" and channels_are_last(space.shape))
    )
    shape = (space.shape[2], *space.shape[:2]) if channels_last else space.shape
    if scale is not None:
        return Entry(
            path, Box(shape, 0.0, 1.0), space.shape, space.dtype, 0, channels_last, np.asarray(scale, np.float32)
        )
    is_bytes = space.dtype == np.uint8 and bool((space.high == 255).all())
    with np.errstate(over="ignore"):  # float64's largest number overflows to infinity in float32
        low, high = (_scalar_if_constant(np.moveaxis(b, 2, 0) if channels_last else b) for b in (space.low, space.high))
    ours = Box(shape, 0.0, 255.0, "uint8") if is_bytes else Box(shape, low, high)
    return Entry(path, ours, space.shape, space.dtype, 0, channels_last)


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Whether a shape is [H, W, C]: equal neighbours are height and width; otherwise channels are the fewest."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last < first


def _scalar_if_constant(bound: Array) -> Array | float:
    """One number if all bounds are equal."""
    bound = np.asarray(bound, np.float32)
    return float(bound.flat[0]) if bound.size and (bound == bound.flat[0]).all() else bound


# Writing ----------------------------------------------------------------------------------------------


def observation_writer(layout: ObservationLayout, rows: Tree, agent: int, warn: Warn) -> Callable[[Any], None]:
    """A function that checks one agent's observation and writes it into row `agent` of `rows` `[A, …]`."""
    parts = [
        (entry.path, _writer(name, entry, rows[name] if isinstance(rows, dict) else rows, agent, warn))
        for name, entry in layout.entries.items()
    ]
    if len(parts) == 1 and parts[0][0] == ():
        return parts[0][1]

    def write(value: Any) -> None:
        for path, write_part in parts:
            write_part(part_at(value, path))

    return write


def part_at(value: Any, path: Path) -> Any:
    """The part of a nested observation at a path."""
    part = value
    for key in path:
        try:
            part = part[key]
        except (KeyError, IndexError, TypeError):
            keys = [*part] if isinstance(part, Mapping) else type_and_value(part)
            raise InvalidEnvOutput(f"an observation with entry {'/'.join(map(str, path))!r}", keys) from None
    return part


def _writer(name: str, entry: Entry, rows: Array, agent: int, warn: Warn) -> Callable[[Any], None]:
    label = f"observation {name}".strip()
    if isinstance(entry.space, Discrete):
        return _integer_writer(label, entry, rows, agent, warn)
    if entry.dtype.kind == "U":
        return _text_writer(label, entry, rows, agent, warn)
    target = rows[agent : agent + 1].reshape(rows.shape[1:])
    if entry.channels_last:
        target = np.moveaxis(target, 0, -1)
    shape, dtype, start, scale = entry.shape, entry.dtype, entry.start, entry.scale
    wide = dtype.kind == "f" and dtype.itemsize > 4  # our rows are float32
    checked = f"{label}, as float32" if wide else label
    zeros = np.zeros(shape, np.float32 if wide else dtype) if dtype.kind == "f" else None
    short = zeros is not None and len(shape) == 1 and shape[0] <= 24
    shifted = bool(np.any(start))
    ndarray, vdot = np.ndarray, np.vdot  # looked up once: this runs for every copy at every step

    def write(value: Any) -> None:
        if type(value) is not ndarray or value.dtype != dtype or value.shape != shape:
            value = _as_declared(label, entry, value, warn)
        if wide:
            with np.errstate(over="ignore"):  # too large numbers become infinite and are refused
                value = value.astype(np.float32)
        if short:  # Python's sum is faster than NumPy's on few numbers; it may overflow, so check again
            if not isfinite(sum(value.tolist())):
                _check_finite(checked, value)
        # 0·x is 0 exactly when x is finite, so one product finds NaN and infinity without overflowing.
        elif zeros is not None and vdot(value, zeros) != 0.0:
            _check_finite(checked, value)
        if scale is not None:
            np.divide(value, scale, out=target)
        else:
            target[...] = value - start if shifted else value

    return write


def _check_finite(label: str, value: Array) -> None:
    indices = np.argwhere(~np.isfinite(value))
    if len(indices):
        index = tuple(map(int, indices[0]))
        raise InvalidEnvOutput(f"finite numbers in {label}", f"{value[index]} at {list(index)}")


def _integer_writer(label: str, entry: Entry, rows: Array, agent: int, warn: Warn) -> Callable[[Any], None]:
    assert isinstance(entry.space, Discrete)
    start, n = entry.start, entry.space.n

    def write(value: Any) -> None:
        if not isinstance(value, int | np.integer):
            array = _as_numbers(value)
            if array is None or array.size != 1 or not float(array.item()).is_integer():
                raise InvalidEnvOutput(f"{label} to be an integer", type_and_value(value))
            if array.ndim:
                warn(f"{label} is an array of one number; read as that number")
            elif array.dtype.kind not in "iu":
                warn(f"{label} is {array.dtype} instead of an integer; converted")
            value = int(array.item())
        if not start <= value < start + n:
            raise InvalidEnvOutput(f"{label} in {start} … {start + n - 1}", value)
        rows[agent] = value - start

    return write


def _text_writer(label: str, entry: Entry, rows: Array, agent: int, warn: Warn) -> Callable[[Any], None]:
    (length,) = entry.shape

    def write(value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidEnvOutput(f"{label} to be text", type_and_value(value))
        written = value.encode()
        if len(written) > length:
            warn(f"{label} is longer than the {length} bytes that its space allows; cut")
            written = written[:length]
        rows[agent, : len(written)] = np.frombuffer(written, np.uint8)
        rows[agent, len(written) :] = 0

    return write


def _as_numbers(value: Any) -> Array | None:
    """A list, a tensor or another object as an array of numbers, or None if it is none."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths; tensors on a GPU or with gradients
        return None
    return array if array.dtype.kind in "biuf" else None


def _as_declared(label: str, entry: Entry, value: Any, warn: Warn) -> Array:
    """The value as an array of the declared type and shape; only floats may be rounded."""
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else _as_numbers(value)
    if array is None:
        raise InvalidEnvOutput(f"{label} to be an array", type_and_value(value))
    if array.shape != entry.shape and {array.shape, entry.shape} == {(), (1,)}:
        if isinstance(value, np.ndarray):
            warn(f"{label} has shape {array.shape} where the space says {entry.shape}; converted")
        array = array.reshape(entry.shape)
    if array.shape != entry.shape:
        raise InvalidEnvOutput(f"{label} of shape {entry.shape}", array.shape)
    if array.dtype.kind not in "biuf":
        raise InvalidEnvOutput(f"{label} of type {entry.dtype}", array.dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks for infinite numbers
        converted: Array = array.astype(entry.dtype)
    if not isinstance(value, np.ndarray | np.generic | float | int):
        warn(f"{label} is a {type(value).__name__} instead of an array; converted")
    elif isinstance(value, np.ndarray) and not np.can_cast(array.dtype, entry.dtype, "safe"):
        warn(f"{label} is {array.dtype} where the space says {entry.dtype}; converted")
    if entry.dtype.kind != "f" and not np.array_equal(converted, array):
        raise InvalidEnvOutput(f"{label} of type {entry.dtype}", f"{array.dtype} {type_and_value(value)}")
    return converted
