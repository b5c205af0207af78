"""Convert Gymnasium's action spaces to ours, and our actions to elements of an environment's space.

Nested actions of one agent (Tuple, Dict) become one vector: choices alone a MultiDiscrete, numbers alone a Box. Where
both occur, numbers are chosen among equally spaced levels, and the whole is a MultiDiscrete.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from coterie.core.types import ActionSpace, Array, Box, CoterieError, Discrete, MultiDiscrete
from coterie.worlds.adapters.batch import InvalidEnvOutput, Warn
from coterie.worlds.adapters.external import ActionSettings
from coterie.worlds.adapters.spaces import demand_space

EDGE = 1e-6  # squashed actions keep this fraction of the range away from infinity
REACH = -math.log(EDGE)  # so this many ranges lie between their one bound and the farthest
NESTED = (gymnasium.spaces.Tuple, gymnasium.spaces.Dict)


@dataclass(frozen=True)
class ActionLayout:
    """The mapping from our actions to an environment's."""

    space: ActionSpace
    theirs: Any  # the environment's space
    settings: ActionSettings
    warnings: tuple[str, ...] = ()


def convert_action_space(space: Any, settings: ActionSettings | None = None) -> ActionLayout:
    """Our space for a Gymnasium action space."""
    settings = settings or ActionSettings()
    leaves = _leaves(space)
    if not sum(math.prod(leaf.shape) for leaf in leaves):
        raise CoterieError(f"actions {space}: nothing to choose")
    numeric = [isinstance(leaf, gymnasium.spaces.Box) for leaf in leaves]
    warnings = []
    if any(not _is_bounded(leaf) for leaf in leaves):
        if settings.one_sided == "squash" and all(numeric) and any(is_one_sided(leaf).any() for leaf in leaves):
            warnings.append(
                f"actions {space}: numbers bounded on one side have draws of the size {settings.limit:g} and reach "
                f"{REACH:.0f} times as far; world.actions.limit sets the size"
            )
        if settings.one_sided == "limit" or any((_missing(leaf) & ~is_one_sided(leaf)).any() for leaf in leaves):
            warnings.append(
                f"actions {space}: missing bounds are set {settings.limit:g} beyond 0 or beyond the other bound, and "
                "actions beyond them are never tried; world.actions.limit changes them"
            )
    if isinstance(space, gymnasium.spaces.Discrete):
        ours: ActionSpace = Discrete(int(space.n))
    elif all(numeric):
        bounds = [bounds_of(leaf, settings.limit, settings.one_sided == "squash") for leaf in leaves]
        low, high = (np.concatenate([b[side].ravel() for b in bounds]) for side in (0, 1))
        if (fixed := low.astype(np.float32) == high.astype(np.float32)).any():
            warnings.append(f"actions {space}: numbers whose bounds are equal stay there, whatever a policy chooses")
            high = np.where(fixed, low + np.maximum(np.abs(low), 1), high)  # a density needs a range; reading clips
        shape = (len(low),) if isinstance(space, NESTED) else space.shape
        ours = Box(shape, _scalar_if_constant(low.reshape(shape)), _scalar_if_constant(high.reshape(shape)))
    else:
        ours = MultiDiscrete(tuple(size for leaf in leaves for size in _sizes(leaf, settings.bins)))
        if any(numeric):
            warnings.append(
                f"actions {space} mix choices and numbers: each number has {settings.bins} levels; "
                "world.actions.bins changes them"
            )
    return ActionLayout(ours, space, settings, tuple(warnings))


def _leaves(space: Any) -> list[Any]:
    """The spaces without parts of a nested space, in order; one of an unsupported type is refused."""
    if isinstance(space, NESTED):
        return [leaf for part in _parts(space).values() for leaf in _leaves(part)]
    demand_space(space, "actions", "action_space")
    match space:
        case gymnasium.spaces.Discrete() | gymnasium.spaces.MultiDiscrete() | gymnasium.spaces.MultiBinary():
            return [space]
        case gymnasium.spaces.Box() if space.dtype.kind == "f":
            return [space]
        case gymnasium.spaces.Box():
            raise CoterieError(
                f"actions {space}: a Box of integers is not supported; declare it as MultiDiscrete in the environment"
            )
    raise CoterieError(
        f"actions {space}: only Discrete, MultiDiscrete, MultiBinary, Box of floats, and Tuples and Dicts of them "
        "are supported"
    )


def _parts(space: Any) -> Mapping[Any, Any]:
    return space.spaces if isinstance(space, gymnasium.spaces.Dict) else dict(enumerate(space.spaces))


def _is_bounded(leaf: Any) -> bool:
    return not _missing(leaf).any()


def _finite(bound: Array) -> Array:
    with np.errstate(over="ignore"):  # float64's largest number is infinite in float32, and as good as unbounded
        return np.isfinite(bound.astype(np.float32))


def _missing(leaf: Any) -> Array:
    """A mask of the numbers of an action that lack a bound."""
    if not isinstance(leaf, gymnasium.spaces.Box):
        return np.zeros((), bool)
    return ~(_finite(leaf.low) & _finite(leaf.high))


def is_one_sided(leaf: Any) -> Array:
    """A mask of the numbers of an action that have one bound and lack the other."""
    if not isinstance(leaf, gymnasium.spaces.Box):
        return np.zeros((), bool)
    return _finite(leaf.low) != _finite(leaf.high)


def bounds_of(box: Any, limit: float, squash: bool) -> tuple[Array, Array]:
    """The bounds of a Gymnasium Box as float64, missing ones replaced.

    They lie `limit` beyond 0 or beyond the other bound, whichever is farther; with `squash` beyond the other bound,
    because draws then have the size of the range.
    """
    low, high = (np.where(_finite(bound), bound, np.inf) for bound in (box.low, box.high))
    from_low, from_high = (np.where(np.isfinite(bound), bound, 0) for bound in (low, high))
    if not squash:
        from_low, from_high = np.maximum(from_low, 0), np.minimum(from_high, 0)
    lowest = np.where(np.isfinite(low), low, from_high - limit)
    highest = np.where(np.isfinite(high), high, from_low + limit)
    return lowest.astype(np.float64), highest.astype(np.float64)


def _sizes(leaf: Any, bins: int) -> list[int]:
    """The numbers of choices of one part."""
    match leaf:
        case gymnasium.spaces.Discrete():
            return [int(leaf.n)]
        case gymnasium.spaces.MultiDiscrete():
            return [int(n) for n in leaf.nvec.ravel()]
        case gymnasium.spaces.MultiBinary():
            return [2] * math.prod(leaf.shape)
    return [bins] * math.prod(leaf.shape)


def _scalar_if_constant(bound: Array) -> Array | float:
    """One number if all bounds are equal."""
    bound = np.asarray(bound, np.float32)
    return float(bound.flat[0]) if bound.size and (bound == bound.flat[0]).all() else bound


# Reading ----------------------------------------------------------------------------------------------


def action_reader(layout: ActionLayout, rows: Array, agent: int) -> Callable[[], Any]:
    """A function that returns one agent's action from `rows` `[A, …]`, as an element of its environment's space."""
    space = layout.theirs
    row = rows[agent : agent + 1].reshape(-1)  # a view, so that it always holds the present action
    levels = layout.settings.bins if isinstance(layout.space, MultiDiscrete) else 0
    return _reader(space, row, 0, layout.settings, levels)[0]


def _reader(space: Any, row: Array, start: int, settings: ActionSettings, levels: int) -> tuple[Callable[[], Any], int]:
    """A function that reads an element of `space` from `row` at `start`, and where it ends."""
    if isinstance(space, NESTED):
        readers: dict[Any, Callable[[], Any]] = {}
        for key, part in _parts(space).items():
            readers[key], start = _reader(part, row, start, settings, levels)
        if isinstance(space, gymnasium.spaces.Dict):
            return lambda: {key: read() for key, read in readers.items()}, start
        return lambda: tuple(read() for read in readers.values()), start
    if isinstance(space, gymnasium.spaces.Discrete):
        choice, first = choice_type(space.dtype), int(space.start)
        return lambda: choice(row.item(start) + first), start + 1
    stop = start + math.prod(space.shape)
    own, shape, dtype = row[start:stop].reshape(space.shape), space.shape, space.dtype
    match space:
        case gymnasium.spaces.MultiDiscrete():
            offset = space.start
            return lambda: (own + offset).astype(dtype), stop
        case gymnasium.spaces.MultiBinary():
            return lambda: own.astype(dtype), stop
    squash = not levels and settings.one_sided == "squash"
    low, high = (bound.astype(dtype) for bound in bounds_of(space, settings.limit, squash))
    if squash and (one_sided := is_one_sided(space)).any():
        above = _finite(space.low)

        def read() -> Array:
            squashed = np.where(one_sided, squash_one_sided(own, low, high, above), np.clip(own, low, high))
            return squashed.astype(dtype)

        return read, stop
    if levels:
        grid = np.linspace(low, high, levels, dtype=dtype).reshape(levels, -1)
        columns = np.arange(grid.shape[1])
        return lambda: grid[own.ravel(), columns].reshape(shape), stop
    # A float32 action may lie past a float64 bound by its rounding error.
    if not shape:  # NumPy returns a number instead of an array without dimensions
        return lambda: np.asarray(np.minimum(np.maximum(own.astype(dtype), low), high)), stop
    return lambda: np.minimum(np.maximum(own.astype(dtype), low), high), stop


def squash_one_sided(own: Array, low: Array, high: Array, above: Array) -> Array:
    """Numbers of [low, high], of which one is a true bound, spread over all that lies `above` (else below) that bound.

    With u the distance from the bound as a fraction of the range, the action lies −log(1 − u) ranges from it: near the
    bound numbers stay what they are, and even draws become exponential ones, which is how Gymnasium samples such a Box.
    """
    width = high.astype(np.float64) - low
    u = np.clip(np.where(above, own - low, high - own) / width, 0, 1) * (1 - EDGE)
    distance = -np.log1p(-u) * width
    squashed: Array = np.where(above, low + distance, high - distance)
    return squashed


class Choice(int):
    """A choice as environments get it: a Python integer with what they may read of the NumPy integer of `sample`."""

    dtype: Any
    shape, ndim, size = (), 0, 1

    def item(self) -> int:
        """The plain integer."""
        return int(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # copies and pickles of an environment hold plain integers


@functools.cache
def choice_type(dtype: Any) -> type[Choice]:
    """Choices of a Discrete space whose numbers are of this type."""
    return type("Choice", (Choice,), {"dtype": dtype})


# Masks ------------------------------------------------------------------------------------------------


def has_mask(layout: ActionLayout, in_observation: bool, in_info: bool, agent: Any) -> bool:
    """Whether an agent's masks are read; masks with actions other than Discrete are refused."""
    wanted = layout.settings.masks
    found = wanted != "none" and (in_observation or in_info)
    if isinstance(layout.space, Discrete):
        return found or wanted == "info"
    if found:
        raise CoterieError(
            f"{agent!r} has an action_mask with actions {layout.theirs}: masks are supported for Discrete actions "
            "only; world.actions.masks: none ignores them"
        )
    return False


def mask_method(env: Any, layout: ActionLayout, warn: Warn) -> Callable[[], Any] | None:
    """The method `action_masks` of a Gymnasium environment, which MaskablePPO of sb3-contrib reads, too."""
    if not env.has_wrapper_attr("action_masks"):
        return None
    if isinstance(layout.space, Discrete):
        method: Callable[[], Any] = env.get_wrapper_attr("action_masks")
        return method
    warn(f"action_masks() is ignored: masks are supported for Discrete actions only, not for {layout.theirs}")
    return None


def write_mask(value: Any, target: Array, agent: Any) -> None:
    """Write an action mask given as 0 and 1 or as False and True; a mask without a legal action is an error."""
    mask = np.asarray(value)
    if mask.shape != target.shape:
        raise InvalidEnvOutput(f"action_mask of {agent!r} of shape {target.shape}", mask.shape)
    target[...] = mask != 0
    if not target.any():
        raise InvalidEnvOutput(f"a legal action in the action_mask of {agent!r}", "none")


def use_fast_discrete(space: Any) -> None:
    """Give an environment's own action space a cheap `contains`, which many environments call at every step."""
    if type(space) is gymnasium.spaces.Discrete:  # it keeps its type, which some environments ask for
        first = int(space.start)  # comparing NumPy's integers with a choice would take 20 times as long
        vars(space)["contains"] = functools.partial(_contains, first, first + int(space.n), space)


def _contains(start: int, stop: int, space: gymnasium.spaces.Discrete, value: Any) -> bool:
    """Whether a Discrete space holds a value: integers are compared, the space itself answers for the rest."""
    return start <= value < stop if isinstance(value, int) else gymnasium.spaces.Discrete.contains(space, value)
