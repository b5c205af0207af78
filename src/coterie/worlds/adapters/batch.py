"""Where guests play: the arrays they write into, and the loop that steps a range of copies.

A `EnvBatch` runs in this process or in a child; it stops at the first copy that fails and says which, so that
whoever owns it can decide what becomes of it. Budgets, histories and processes are not its business.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from coterie.core import seeding
from coterie.core.types import (
    AgentType,
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    ObservationSpace,
    Tree,
    action_dtype,
    action_shape,
    map_tree,
)


class ExternalEnvError(CoterieError):
    """A third-party environment failed; says which, in what copy, and at what step."""


class Mismatch(Exception):
    """A guest said something other than it promised."""

    def __init__(self, expected: str, got: Any) -> None:
        super().__init__(f"expected {expected}, got {got}")


class Failure(NamedTuple):
    """One copy that went wrong."""

    copy: int
    during: Literal["step", "reset"]
    text: str
    dead: bool = False  # its process died with it


@dataclass(frozen=True)
class EnvSpec:
    """What an environment says of itself before anything is played."""

    agent_types: Mapping[str, AgentType]
    simultaneous: bool = True
    masked: tuple[str, ...] = ()  # kinds whose legal actions are told
    success: bool = False  # an episode can be won
    notes: tuple[str, ...] = ()  # for the user to know


class AgentTypeArrays(NamedTuple):
    """What one kind of agents is told, of all copies `[N, A, …]` or of one `[A, …]`."""

    observation: Tree
    final: Tree
    acting: Array  # bool
    reward: Array  # float32
    terminated: Array  # bool
    truncated: Array  # bool
    gone: Array  # bool: the agent's episode has ended, the copy's perhaps not
    action: Array
    mask: Array | None  # bool


Row = Mapping[str, AgentTypeArrays]  # one copy's place in the arrays


class ExternalEnv(Protocol):
    """One copy of a third-party environment, written by an adapter."""

    env_spec: EnvSpec

    def sit(self, row: Row) -> None:
        """Write there from now on."""
        ...

    def reset(self, seed: int) -> None:
        """Begin an episode: write observations, masks, who acts; nobody is gone."""
        ...

    def step(self) -> bool:
        """Take the actions in the row, write all that follows; says whether the episode is over."""
        ...

    def won(self) -> bool:
        """Whether the episode that is over was a success."""
        ...

    def frame(self) -> Any:
        """The environment's picture."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


Maker = Callable[[], ExternalEnv]


class Arrays:
    """All that guests write and a world tells, in one block of memory that processes may share."""

    def __init__(self, env_spec: EnvSpec, num_envs: int, memory: Any = None) -> None:
        self.env_spec, self.num_envs = env_spec, num_envs
        self._memory, self._offset = memory, 0
        self.flat: list[Array] = []  # every array that speaks of copies, each `[N, …]`
        self.agent_types = {name: self._kind(name, agent_type) for name, agent_type in env_spec.agent_types.items()}
        self.ended = self._array((num_envs,), "bool")
        self.success = self._array((num_envs,), "bool")
        self.episode = self._array((num_envs,), "int64")
        self.clock = self._array((num_envs,), "int64")  # steps taken in the present episode
        self.resetting = self._array((num_envs,), "bool")  # a reset has begun and not come back
        self.size = self._offset

    def _array(self, shape: tuple[int, ...], dtype: str) -> Array:
        """The next piece of memory; without any, an array of its own."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        start, self._offset = self._offset, self._offset + -(-size // 64) * 64
        if self._memory is None:
            array: Array = np.zeros(shape, dtype)
        else:
            array = np.frombuffer(self._memory, np.uint8, size, start).view(dtype).reshape(shape)
        self.flat.append(array)
        return array

    def _kind(self, name: str, agent_type: AgentType) -> AgentTypeArrays:
        rows = (self.num_envs, len(agent_type.agents))
        choices = agent_type.action.n if isinstance(agent_type.action, Discrete) else 0
        flags = [self._array(rows, "bool") for _ in range(4)]
        return AgentTypeArrays(
            observation=self._tree(rows, agent_type.observation),
            final=self._tree(rows, agent_type.observation),
            acting=flags[0],
            reward=self._array(rows, "float32"),
            terminated=flags[1],
            truncated=flags[2],
            gone=flags[3],
            action=self._array((*rows, *action_shape(agent_type.action)), action_dtype(agent_type.action)),
            mask=self._array((*rows, choices), "bool") if name in self.env_spec.masked else None,
        )

    def _tree(self, rows: tuple[int, int], space: ObservationSpace) -> Tree:
        match space:
            case Dict(entries):
                return {key: self._tree(rows, part) for key, part in entries.items()}  # type: ignore[misc]  # flat
            case Box(shape, dtype=dtype):
                return self._array((*rows, *shape), dtype)
            case Discrete():
                return self._array(rows, "int64")

    def row(self, copy: int) -> Row:
        """One copy's place."""

        def at(value: Any) -> Any:
            return None if value is None else map_tree(lambda array: array[copy], value)

        return {name: AgentTypeArrays(*(at(value) for value in arrays)) for name, arrays in self.agent_types.items()}


class EnvBatch:
    """Copies `num_envs` of a world, one guest each."""

    def __init__(self, make: Maker, num_envs: range, fresh: bool) -> None:
        self.make, self.num_envs, self.fresh, self.seed = make, num_envs, fresh, 0
        self.guests = [make() for _ in num_envs]
        self.env_spec = self.guests[0].env_spec
        self.at = np.zeros(1, np.int64)  # the copy that is being stepped or reset

    def attach(self, arrays: Arrays, at: Array | None = None) -> None:
        """Seat the guests."""
        self.arrays = arrays
        self.at = self.at if at is None else at
        self.rows = {copy: arrays.row(copy) for copy in self.num_envs}
        for copy, guest in zip(self.num_envs, self.guests, strict=True):
            guest.sit(self.rows[copy])

    def use_seed(self, seed: int) -> None:
        """Derive the seeds of later episodes from this one."""
        self.seed = seed

    def start(self, first: int, seed: int) -> Failure | None:
        """Begin an episode in every copy from `first` on."""
        self.seed = seed
        for copy in range(first, self.num_envs.stop):
            failure = self.begin(copy)
            if failure is not None:
                return failure
        return None

    def begin(self, copy: int, anew: bool = False) -> Failure | None:
        """Begin the episode that the copy's number says, in a newly built guest if asked to."""
        arrays, self.at[0] = self.arrays, copy
        arrays.clock[copy], arrays.resetting[copy] = 0, True
        seed = seeding.integer(self.seed, "guest", copy, int(arrays.episode[copy])) % 2**31  # NumPy's old seeds
        try:
            if anew or self.fresh:
                self._renew(copy)
            self.guests[copy - self.num_envs.start].reset(seed)
        except (Exception, SystemExit) as error:
            return Failure(copy, "reset", describe(error))
        finally:
            arrays.resetting[copy] = False
        return None

    def step(self, first: int) -> Failure | None:
        """Step every copy from `first` on; one whose episode is over begins the next."""
        arrays, at = self.arrays, self.at
        ended, clock = arrays.ended, arrays.clock
        offset = self.num_envs.start
        for copy in range(first, self.num_envs.stop):
            at[0] = copy
            guest = self.guests[copy - offset]
            try:
                over = guest.step()
            except (Exception, SystemExit) as error:  # whatever a guest may raise; the owner decides
                return Failure(copy, "step", describe(error))
            clock[copy] += 1
            ended[copy] = over
            if over:
                arrays.success[copy] = guest.won()
                for row in self.rows[copy].values():
                    map_tree(_write, row.final, row.observation)
                arrays.episode[copy] += 1
                failure = self.begin(copy)
                if failure is not None:
                    return failure
        return None

    def replay(self, copy: int, played: Mapping[str, Array], length: int) -> Failure | None:
        """Begin the copy's episode and take these actions again."""
        failure = self.begin(copy)
        guest, row = self.guests[copy - self.num_envs.start], self.rows[copy]
        for step in range(length if failure is None else 0):
            for agent_type, actions in played.items():
                row[agent_type].action[...] = actions[step]
            try:
                over = guest.step()
            except (Exception, SystemExit) as error:
                return Failure(copy, "step", describe(error))
            if over:
                return Failure(copy, "step", f"it ended after {step + 1} of {length} steps")
            self.arrays.clock[copy] += 1
        return failure

    def _renew(self, copy: int) -> None:
        place = copy - self.num_envs.start
        _close(self.guests[place])
        self.guests[place] = self.make()
        self.guests[place].sit(self.rows[copy])

    def frame(self, copy: int) -> Any:
        """The environment's picture, or what went wrong."""
        try:
            picture = np.asarray(self.guests[copy - self.num_envs.start].frame())
        except Exception as error:
            return Failure(copy, "step", f"drawing {describe(error)}")
        if picture.ndim != 3 or picture.shape[2] != 3:
            return Failure(copy, "step", f"expected a picture [height, width, 3], got {picture.dtype} {picture.shape}")
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        """Let go of all guests."""
        for guest in self.guests:
            _close(guest)


# What a guest may say -----------------------------------------------------------------------------------


def as_reward(value: Any) -> float:
    """A finite number, or a clear error."""
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise Mismatch("reward to be a number", shown(value)) from None
    if not isfinite(reward):
        raise Mismatch("a finite reward", reward)
    return reward


def as_flag(name: str, value: Any) -> bool:
    """A truth value, or a clear error."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise Mismatch(f"{name} to be a bool", shown(value))


def shown(value: Any) -> str:
    """A value and its type, in a few words."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"


def _write(into: Array, value: Array) -> None:
    into[...] = value


def _close(guest: ExternalEnv) -> None:
    try:
        guest.close()
    except Exception:  # it is being thrown away, often because it is broken
        return


def describe(error: BaseException) -> str:
    """What went wrong, and where in the guest's own code."""
    if isinstance(error, Mismatch):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"raised {type(error).__name__}{f': {first}' if first else ''}{place}"


def as_text(picture: Array, columns: int = 72) -> str:
    """A picture in a terminal's letters: each shows an upper and a lower pixel in its two colours."""
    height, width, _ = picture.shape
    columns = min(columns, width)
    rows = max(2, round(height / width * columns)) // 2 * 2
    small = picture[np.arange(rows) * height // rows][:, np.arange(columns) * width // columns]
    lines = []
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        cells = [
            f"\x1b[38;2;{a};{b};{c}m\x1b[48;2;{d};{e};{f}m▀"
            for (a, b, c), (d, e, f) in zip(upper.tolist(), lower.tolist(), strict=True)
        ]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)
