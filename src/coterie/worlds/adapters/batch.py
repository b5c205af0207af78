"""A batch of third-party environments: the arrays they write into, and the loop that steps them.

An `EnvBatch` runs in the main process or in a child process. It stops at the first environment that fails and
returns an `EnvFailure`; `ExternalWorld` decides about restarts. Action histories and processes are not handled here.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from coterie.core import heartbeat, seeding
from coterie.core.trees import map_tree
from coterie.core.types import (
    AgentType,
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    ObservationSpace,
    Text,
    Tree,
    action_dtype,
    action_shape,
)

log = logging.getLogger("coterie")
LONG_EPISODE = 2000  # steps after which a missing time limit is mentioned
LARGEST = float(np.finfo(np.float32).max)
RESET_SIGNATURE = re.compile(r"\breset\(\) (got an unexpected|missing)")  # in the message of a TypeError
AGAIN = "; if it cannot be reset twice, world.fresh: true builds it anew for every episode"
Warn = Callable[[str], None]
_warned: set[tuple[str, str]] = set()
_collected: list[tuple[str, str, str]] | None = None  # in a child process: warnings that its parent has not got yet


def warn_once(world_name: str, message: str, key: str = "") -> None:
    """Log a warning about an environment, once in this process; a child process leaves it to its parent.

    Messages with the same `key` are the same warning.
    """
    if (world_name, key or message) in _warned:
        return
    _warned.add((world_name, key or message))
    if _collected is not None:
        _collected.append((world_name, message, key))
    else:
        log.warning("%s: %s", world_name, message)


def collect_warnings() -> None:
    """Keep warnings for `take_warnings` instead of logging them."""
    global _collected
    _collected = []


def take_warnings() -> list[tuple[str, str, str]]:
    """The warnings since the last call."""
    found = list(_collected or ())
    if _collected is not None:
        _collected.clear()
    return found


class ExternalEnvError(CoterieError):
    """A third-party environment failed; the message gives the environment, copy, episode and step."""


class InvalidEnvOutput(Exception):
    """A third-party environment returned a value that contradicts its spaces or its API."""

    def __init__(self, expected: str, got: Any) -> None:
        super().__init__(f"expected {expected}, got {got}")


class EnvFailure(NamedTuple):
    """The failure of one copy."""

    copy: int
    during: Literal["step", "reset"]
    message: str
    process_died: bool = False


@dataclass(frozen=True)
class EnvSpec:
    """Declarations of an environment before the first episode."""

    agent_types: Mapping[str, AgentType]
    simultaneous: bool = True
    masked: tuple[str, ...] = ()  # agent types that come with action masks
    has_success: bool = False  # episodes can succeed or fail
    warnings: tuple[str, ...] = ()  # logged once for the user
    limited: bool = False  # episodes have a known time limit
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by agent type: observations that hold text


OWN_LIMITS = ("max_cycles", "max_steps", "max_episode_steps", "_max_episode_steps", "max_num_frames_per_episode")


def has_own_limit(env: Any) -> bool:
    """Whether a third-party environment shows a time limit of its own by an attribute or option of a usual name."""
    bare, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    options = getattr(spec, "kwargs", None) or {}
    return any(isinstance(getattr(bare, name, options.get(name)), int | np.integer) for name in OWN_LIMITS)


class AgentTypeArrays(NamedTuple):
    """The arrays of one agent type, of all copies `[N, A, …]` or of one copy `[A, …]`."""

    observation: Tree
    final_observation: Tree
    acting: Array  # bool
    reward: Array  # float32
    terminated: Array  # bool
    truncated: Array  # bool
    done: Array  # bool: the agent's episode has ended; the copy's episode may go on
    action: Array
    mask: Array | None  # bool


EnvArrays = Mapping[str, AgentTypeArrays]  # the arrays of one copy, by agent type


class ExternalEnv(Protocol):
    """One third-party environment, implemented by an adapter."""

    env_spec: EnvSpec

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        ...

    def reset(self, seed: int) -> None:
        """Start an episode: write observations, masks and `acting`; clear `done`."""
        ...

    def step(self) -> bool:
        """Apply the actions in the arrays, write the results, and return whether the episode is over."""
        ...

    def success(self) -> bool:
        """Whether the episode that just ended was successful."""
        ...

    def frame(self) -> Any:
        """The environment's picture."""
        ...

    def close(self) -> None:
        """Release the environment's resources."""
        ...


EnvFactory = Callable[[], ExternalEnv]


class BatchArrays:
    """The arrays of all copies, in one block of memory that processes can share."""

    def __init__(self, env_spec: EnvSpec, num_envs: int, memory: Any = None) -> None:
        self.env_spec, self.num_envs = env_spec, num_envs
        self._memory, self._offset = memory, 0
        self.all: list[Array] = []  # every array, each `[N, …]`
        self.agent_types = {
            name: self._agent_type(name, agent_type) for name, agent_type in env_spec.agent_types.items()
        }
        self.ended = self._array((num_envs,), "bool")
        self.success = self._array((num_envs,), "bool")
        self.episode = self._array((num_envs,), "int64")
        self.elapsed_steps = self._array((num_envs,), "int64")  # of the current episode
        self.resetting = self._array((num_envs,), "bool")  # a reset has begun and has not returned
        self.paused = self._array((num_envs,), "bool")  # not stepped until the next reset of all copies
        self.numbered = self._array((num_envs,), "bool")  # episodes are seeded by their number among all
        self.size = self._offset

    def _array(self, shape: tuple[int, ...], dtype: str) -> Array:
        """The next piece of the memory block, or a separate array when there is no block."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        start, self._offset = self._offset, self._offset + -(-size // 64) * 64
        if self._memory is None:
            array: Array = np.zeros(shape, dtype)
        else:
            array = np.frombuffer(self._memory, np.uint8, size, start).view(dtype).reshape(shape)
        self.all.append(array)
        return array

    def _agent_type(self, name: str, agent_type: AgentType) -> AgentTypeArrays:
        rows = (self.num_envs, len(agent_type.agents))
        choices = agent_type.action.n if isinstance(agent_type.action, Discrete) else 0
        flags = [self._array(rows, "bool") for _ in range(4)]
        return AgentTypeArrays(
            observation=self._tree(rows, agent_type.observation),
            final_observation=self._tree(rows, agent_type.observation),
            acting=flags[0],
            reward=self._array(rows, "float32"),
            terminated=flags[1],
            truncated=flags[2],
            done=flags[3],
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
            case Text():
                raise ValueError("third-party environments have no text spaces; their texts are rows of bytes")

    def of_copy(self, copy: int) -> EnvArrays:
        """Views of one copy's rows."""

        def at(value: Any) -> Any:
            return None if value is None else map_tree(lambda array: array[copy], value)

        return {name: AgentTypeArrays(*(at(value) for value in arrays)) for name, arrays in self.agent_types.items()}


class EnvBatch:
    """The environments of a range of copies, stepped one after the other."""

    def __init__(
        self, make_env: EnvFactory, copies: range, fresh: bool, name: str, timeout: float, startup_timeout: float
    ) -> None:
        """`timeout`: seconds that a step or reset may take, as this process's heartbeat says; `startup_timeout`: the
        same for the construction of an environment."""
        self.make_env, self.copies, self.fresh, self.name, self.seed = make_env, copies, fresh, name, 0
        self.timeout, self.startup_timeout = timeout, startup_timeout
        self.envs = [self._make(copy) for copy in copies]
        self.env_spec = self.envs[0].env_spec
        self.used = [False] * len(copies)  # the environment has been stepped
        self.episode_seeds = [0] * len(copies)

    def _make(self, copy: int) -> ExternalEnv:
        """Build the environment of a copy."""
        self._enter(copy, limit=self.startup_timeout)
        try:
            return self.make_env()
        finally:
            heartbeat.own.leave()

    def _enter(self, copy: int, episode: int = -1, step: int = -1, seed: int = -1, limit: float = 0.0) -> None:
        """Say what is called next: it may not return."""
        heartbeat.own.world = self.name
        heartbeat.own.enter(limit or self.timeout, copy, episode, step, seed)

    def attach(self, arrays: BatchArrays) -> None:
        """Bind every environment to its rows of the arrays."""
        self.arrays = arrays
        self.env_arrays = {copy: arrays.of_copy(copy) for copy in self.copies}
        for copy, env in zip(self.copies, self.envs, strict=True):
            env.bind(self.env_arrays[copy])

    def set_seed(self, seed: int) -> None:
        """Derive the seeds of later episodes from this one."""
        self.seed = seed

    def reset_all(self, first: int, seed: int) -> EnvFailure | None:
        """Start an episode in every copy from `first` on; a used environment is built anew, whatever it remembers."""
        self.seed = seed
        for copy in range(first, self.copies.stop):
            failure = self.reset(copy, rebuild=self.used[copy - self.copies.start])
            if failure is not None:
                return failure
        return None

    def reset(self, copy: int, rebuild: bool = False) -> EnvFailure | None:
        """Start the episode numbered `arrays.episode[copy]`, in a newly built environment if asked."""
        arrays, index = self.arrays, copy - self.copies.start
        arrays.elapsed_steps[copy], arrays.resetting[copy] = 0, True
        # The word "guest" is part of every episode's seed: another word would change all results.
        # NumPy's legacy generators accept seeds below 2^32.
        episode = int(arrays.episode[copy])
        place = (copy + episode * arrays.num_envs, 0) if arrays.numbered[copy] else (copy, episode)
        seed = self.episode_seeds[index] = seeding.integer(self.seed, "guest", *place) % 2**31
        try:
            if rebuild or self.fresh:
                self._rebuild(copy)
            self._enter(copy, episode, 0, seed)
            self.envs[index].reset(seed)
        except (Exception, SystemExit) as error:
            again = self.used[index] and not isinstance(error, InvalidEnvOutput)
            return EnvFailure(copy, "reset", describe_error(error) + (AGAIN if again else ""))
        finally:
            heartbeat.own.leave()
            arrays.resetting[copy] = False
        return None

    def step(self, first: int) -> EnvFailure | None:
        """Step every copy from `first` on; a copy whose episode is over starts the next one."""
        arrays, offset = self.arrays, self.copies.start
        ended, elapsed_steps, paused = arrays.ended, arrays.elapsed_steps, arrays.paused.tolist()
        episodes, lengths = arrays.episode.tolist(), elapsed_steps.tolist()
        for copy in range(first, self.copies.stop):
            if paused[copy]:
                continue
            env, self.used[copy - offset] = self.envs[copy - offset], True
            steps = lengths[copy] + 1
            self._enter(copy, episodes[copy], steps, self.episode_seeds[copy - offset])
            try:
                over = env.step()
            except (Exception, SystemExit) as error:  # third-party code may raise anything; the world decides
                return EnvFailure(copy, "step", describe_error(error))
            finally:
                heartbeat.own.leave()
            elapsed_steps[copy] = steps
            ended[copy] = over
            if steps == LONG_EPISODE and not self.env_spec.limited:
                warn_once(
                    self.name,
                    f"an episode has lasted {LONG_EPISODE:,} steps and no time limit is known; if episodes may never "
                    "end, set world.max_episode_steps",
                )
            if over:
                arrays.success[copy] = env.success()
                for agent_type in self.env_arrays[copy].values():
                    map_tree(_write, agent_type.final_observation, agent_type.observation)
                arrays.episode[copy] += 1
                failure = self.reset(copy)
                if failure is not None:
                    return failure
        return None

    def replay(self, copy: int, actions: Mapping[str, Array], length: int) -> EnvFailure | None:
        """Start the copy's episode again and repeat its first `length` actions."""
        failure = self.reset(copy)
        self.used[copy - self.copies.start] = True
        env, arrays = self.envs[copy - self.copies.start], self.env_arrays[copy]
        episode, seed = int(self.arrays.episode[copy]), self.episode_seeds[copy - self.copies.start]
        for step in range(length if failure is None else 0):
            for agent_type, taken in actions.items():
                arrays[agent_type].action[...] = taken[step]
            self._enter(copy, episode, step + 1, seed)
            try:
                over = env.step()
            except (Exception, SystemExit) as error:
                return EnvFailure(copy, "step", describe_error(error))
            finally:
                heartbeat.own.leave()
            if over:
                return EnvFailure(copy, "step", f"the episode ended after {step + 1} of {length} steps")
            self.arrays.elapsed_steps[copy] += 1
        return failure

    def _rebuild(self, copy: int) -> None:
        index = copy - self.copies.start
        close_env(self.envs[index])
        self.envs[index], self.used[index] = self._make(copy), False
        self.envs[index].bind(self.env_arrays[copy])

    def frame(self, copy: int) -> Any:
        """The environment's picture, or an `EnvFailure`."""
        try:
            return as_picture(self.envs[copy - self.copies.start].frame(), functools.partial(warn_once, self.name))
        except (Exception, SystemExit) as error:
            return EnvFailure(copy, "step", f"rendering: {describe_error(error)}")

    def ask(self, copy: int, question: str, *arguments: Any) -> Any:
        """The answer of one environment's method of this name, or an `EnvFailure`."""
        try:
            return getattr(self.envs[copy - self.copies.start], question)(*arguments)
        except (Exception, SystemExit) as error:
            return EnvFailure(copy, "step", f"{question}: {describe_error(error)}")

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            close_env(env)


# Checks of returned values ------------------------------------------------------------------------------


def as_reward(value: Any, weights: Sequence[float] | None, warn: Warn) -> float:
    """The reward as a finite float, or `InvalidEnvOutput`; a vector is weighted by `world.scalarize`."""
    try:
        plain = isinstance(value, float | int) and weights is None
        reward = float(value) if plain else _single_reward(value, weights, warn)
    except (TypeError, ValueError):
        expected = "reward to be a number" + " (0.0 where nothing is earned)" * (value is None)
        raise InvalidEnvOutput(expected, type_and_value(value)) from None
    if not -LARGEST <= reward <= LARGEST:
        raise InvalidEnvOutput("a finite reward" + ", as float32" * isfinite(reward), reward)
    return reward


def _single_reward(value: Any, weights: Sequence[float] | None, warn: Warn) -> float:
    if isinstance(value, str):
        raise TypeError
    several = isinstance(value, list | tuple | np.ndarray) and np.ndim(value) > 0
    if not several and weights is None:
        return float(value)
    parts = np.asarray(value, np.float64).ravel()
    if weights is not None:
        if len(parts) != len(weights):
            raise InvalidEnvOutput(f"a reward of {len(weights)} numbers, as many as world.scalarize has", len(parts))
        return float(parts @ np.asarray(weights, np.float64))
    if len(parts) != 1:
        cures = "world.scalarize: [weights] adds up several; world.agents: tuple reads one for each agent"
        raise InvalidEnvOutput(f"reward to be a number ({cures})", type_and_value(value))
    warn("a reward is an array of one number; read as that number")
    return float(parts[0])


def as_bool(name: str, value: Any, warn: Warn) -> bool:
    """The flag as a bool, or `InvalidEnvOutput`."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, float | int | np.number | np.ndarray) and np.size(value) == 1:
        number = np.asarray(value).item()
        if number in (0, 1):
            warn(f"{name} is {type(value).__name__} instead of bool; 1 counts as true")
            return bool(number)
    raise InvalidEnvOutput(f"{name} to be a bool", type_and_value(value))


def as_picture(value: Any, warn: Warn) -> Array:
    """A rendered frame as `[height, width, 3]` bytes, or `InvalidEnvOutput`."""
    if value is None:
        raise InvalidEnvOutput("a picture [height, width, 3]", "None")
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray) and value[0].ndim == 3:
        warn("render returns a list of frames; the last one is shown")
        value = value[-1]
    picture = np.asarray(value)
    if picture.ndim == 2:
        picture = picture[..., None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or picture.dtype.kind not in "biuf" or not picture.size:
        raise InvalidEnvOutput("a picture [height, width, 3]", f"{picture.dtype} {picture.shape}")
    if picture.shape[2] != 3:
        warn(f"render returns {picture.shape[2]} channels; shown as red, green and blue")
        picture = picture[..., :3] if picture.shape[2] == 4 else np.repeat(picture, 3, axis=2)
    if picture.dtype.kind in "bf" and picture.max() <= 1:
        warn(f"render returns {picture.dtype} in [0, 1]; multiplied by 255")
        picture = picture * 255.0
    return picture if picture.dtype == np.uint8 else np.clip(picture, 0, 255).astype(np.uint8)


def type_and_value(value: Any) -> str:
    """A value and its type, shortened for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"


def describe_error(error: BaseException) -> str:
    """The error's type and message, and the line of third-party code that raised it."""
    if isinstance(error, InvalidEnvOutput):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    line = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    first = (str(error).strip().splitlines() or [""])[0]
    cure = "; define reset(self, *, seed=None, options=None)" if RESET_SIGNATURE.search(first) else ""
    return f"raised {type(error).__name__}{f': {first}' if first else ''}{line}{cure}"


def _write(into: Array, value: Array) -> None:
    into[...] = value


def close_env(env: Any) -> None:
    """Close an environment that is not used any more; others of this process keep pygame."""
    with _pygame_kept():
        try:
            env.close()
        except (Exception, SystemExit):  # the environment is discarded, often because it is broken
            return


@contextmanager
def _pygame_kept() -> Iterator[None]:
    """Ignore calls that quit pygame: environments end it when they are closed, and others lose their surfaces."""
    loaded = [sys.modules[name] for name in ("pygame", "pygame.display") if name in sys.modules]
    quits = [module.quit for module in loaded]
    for module in loaded:
        vars(module)["quit"] = _do_nothing
    try:
        yield
    finally:
        for module, theirs in zip(loaded, quits, strict=True):
            vars(module)["quit"] = theirs


def _do_nothing() -> None:
    """Takes the place of pygame's `quit`."""
