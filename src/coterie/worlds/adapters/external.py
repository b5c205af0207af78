"""Worlds made of third-party environments: seeds, exact resume by replay, failures and restarts.

`ExternalWorld` is the world. An `ExternalEnv` (`batch.py`) is one environment, implemented by an adapter
(`gymnasium.py`, `minigrid.py`, `pettingzoo.py`). `workers.py` runs the environments, here or in child processes.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

import numpy as np

from coterie.core.global_random import global_state, set_global_state
from coterie.core.settings import Settings
from coterie.core.trees import arrays_of, map_tree
from coterie.core.types import (
    ActionSpace,
    AgentStep,
    AgentType,
    Array,
    Box,
    CoterieError,
    Discrete,
    MultiDiscrete,
    State,
    TimeStep,
    UnknownName,
    action_dtype,
    action_shape,
)
from coterie.core.validation import at_least, positive
from coterie.core.world import CostlySteps, World
from coterie.worlds.adapters.batch import BatchArrays, EnvFactory, EnvFailure, ExternalEnvError, close_env, warn_once
from coterie.worlds.adapters.own_generators import OwnGenerators
from coterie.worlds.adapters.workers import Worker, WorkerSpec, close_workers, receive_results, start_workers

log = logging.getLogger("coterie")
FRESH_HINT = (
    "If the environment keeps state between episodes, set world.fresh: true; "
    "if it draws from global generators, set world.seed_globals: true."
)


@dataclass(frozen=True)
class ActionSettings:
    """Settings for reading an environment's actions."""

    limit: float = 10.0  # a missing bound of continuous actions is set this far beyond 0, or beyond the other bound
    one_sided: Literal["squash", "limit"] = "squash"  # squash: numbers with one bound reach beyond the limit
    bins: int = 11  # levels of each number where an action mixes choices and numbers
    masks: Literal["auto", "info", "none"] = "auto"  # auto: masks seen at an episode's start; info: also later; none

    def __post_init__(self) -> None:
        positive("limit", self.limit)
        at_least("bins", self.bins, 2)


@dataclass(frozen=True)
class ExternalSettings(Settings):
    """Settings that every adapter shares."""

    id: str  # the environment's name: the part of the world's name after the slash
    options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the environment's constructor
    processes: int | None = None  # child processes that share the copies; 0: none; None: one if `restarts` is set
    timeout: float = 300.0  # seconds that a step or reset of one environment may take
    restarts: int = 0  # failed episodes to truncate before a failure is an error; 0: the first failure is an error
    max_episode_steps: int | None = None  # truncate episodes here; None: at the registered limit
    fresh: bool = False  # build the environment anew for every episode, if it keeps state between episodes
    render: bool = False  # enable pictures, which slows some environments down
    seed_globals: bool = False  # seed the global generators of Python, NumPy and PyTorch for every episode of a copy
    text: bool = False  # keep text of observations as bytes, which language models read as text
    scalarize: tuple[float, ...] | None = None  # weights that turn a reward of several numbers into one
    actions: ActionSettings = field(default_factory=ActionSettings)  # missing bounds, mixed actions, masks
    frame_stack: int = 1  # latest observations shown together; the first of an episode is repeated
    grey: bool = False  # pictures without colours
    resize: tuple[int, int] | None = None  # height and width that pictures are averaged to

    def __post_init__(self) -> None:
        at_least("processes", self.processes or 0, 0)
        positive("timeout", self.timeout)
        at_least("restarts", self.restarts, 0)
        at_least("frame_stack", self.frame_stack, 1)
        for length in self.resize or ():
            at_least("resize: height and width", length, 1)
        if self.scalarize is not None:
            at_least("scalarize: its length", len(self.scalarize), 1)
        if self.max_episode_steps is not None:
            at_least("max_episode_steps", self.max_episode_steps, 1)

    @property
    def child_processes(self) -> int:
        """At most this many child processes play: an environment that hangs or crashes can be restarted only there."""
        return int(self.restarts > 0) if self.processes is None else self.processes

    @property
    def evaluation_copies(self) -> int:
        """At most this many copies play an evaluation: more take time to build, and memory, and are not faster."""
        return max(16, self.child_processes)

    @property
    def changes_frames(self) -> bool:
        """Whether observations are stacked, made grey or resized."""
        return self.frame_stack > 1 or self.grey or self.resize is not None


_has_info_masks: dict[str, bool] = {}  # found by looking at a separate environment, once for each process


def has_info_masks(settings: ExternalSettings, make: Callable[[], Any], play: Callable[[Any], bool]) -> bool:
    """Whether an environment gives action masks in its infos, as `play` finds in an environment of its own."""
    if settings.actions.masks != "auto":
        return settings.actions.masks == "info"
    key = f"{settings.id} {settings.options}"
    if key not in _has_info_masks:
        before = global_state()
        env = make()
        try:
            _has_info_masks[key] = play(env)
        except (Exception, SystemExit):  # whatever fails here fails again in the first episode, and is reported there
            _has_info_masks[key] = False
        finally:
            close_env(env)
            set_global_state(before)  # the trial leaves no trace in what the environment draws later
    return _has_info_masks[key]


class ExternalWorld(World):
    """N copies of a third-party environment.

    Every episode is seeded from (seed, copy, episode), or from (seed, copy + episode·N, 0) once `number_episodes` was
    called, so that evaluations do not depend on the number of copies N. A saved state holds the actions of the current
    episodes, and `load` replays them. `restarts` counts the episodes that failed and were truncated.
    """

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool
    draws_final = False

    def __init__(self, name: str, settings: ExternalSettings, make_env: EnvFactory, num_envs: int) -> None:
        at_least("num_envs", num_envs, 1)
        self.name, self.settings, self.num_envs = name, settings, num_envs
        self.restarts = 0
        processes = min(settings.child_processes, num_envs)  # videos and spec checks use a world of one copy
        if settings.seed_globals:
            make_env = functools.partial(OwnGenerators, make_env)
        worker_spec = WorkerSpec(name, make_env, processes, settings.timeout, settings.fresh)
        self._workers, self._env_spec, self._arrays = start_workers(worker_spec, num_envs)
        self._finalizer = weakref.finalize(self, close_workers, self._workers)
        for warning in self._env_spec.warnings:
            warn_once(name, warning)
        self.agent_types, self.simultaneous = self._env_spec.agent_types, self._env_spec.simultaneous
        self.texts, self.limits_episodes = self._env_spec.texts, self._env_spec.limited
        self._seed = 0
        self._history = _ActionHistory(self.agent_types, num_envs)
        self._fast_checks = {name: _fast_check(agent_type.action) for name, agent_type in self.agent_types.items()}
        arrays = self._arrays
        agent_steps = {
            agent_type: AgentStep(
                a.observation, a.acting, a.reward, a.terminated, a.truncated, a.final_observation, a.mask
            )
            for agent_type, a in arrays.agent_types.items()
        }
        self._timestep = TimeStep(agent_steps, arrays.ended, arrays.success if self._env_spec.has_success else None)

    def number_episodes(self) -> None:
        """Number episodes through all copies from the next reset on. Such a world is not saved."""
        self._arrays.numbered[:] = True

    def reset(self, seed: int) -> TimeStep:
        """Start episode 0 of every copy."""
        self._seed = seed
        self._arrays.episode[:], self._arrays.elapsed_steps[:], self._arrays.paused[:] = 0, 0, False
        self._history.clear()
        self._call_all("reset_all", seed)
        return self._start_timestep()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Step every copy; a copy whose episode ends is reset at once."""
        arrays = self._arrays
        for name, agent_type in arrays.agent_types.items():
            given = np.asarray(actions[name])
            if given.shape != agent_type.action.shape:
                raise ValueError(f"actions of {name!r} must have shape {agent_type.action.shape}, got {given.shape}")
            if given.dtype == agent_type.action.dtype:
                agent_type.action[...] = given
            else:
                np.copyto(agent_type.action, given, casting="same_kind")
            if agent_type.action.size > 64 or not self._fast_checks[name](agent_type.action.ravel().tolist()):
                self._check_actions(name)
            if self.settings.restarts:  # a copy that fails ends with its last valid observation
                map_tree(np.copyto, agent_type.final_observation, agent_type.observation)
        self._history.append(arrays)
        self._call_all("step")
        return self._timestep

    def pause(self, copies: Array) -> None:
        """Stop stepping these copies until the next reset; such a world cannot be saved."""
        self._arrays.paused |= copies
        self._arrays.ended[copies] = False
        for agent_type in self._arrays.agent_types.values():
            agent_type.reward[copies] = 0
            for flags in (agent_type.acting, agent_type.terminated, agent_type.truncated):
                flags[copies] = False

    def save(self) -> State:
        """The numbers of the current episodes and the actions taken in them."""
        arrays = self._arrays
        if arrays.paused.any() or arrays.numbered.any():
            raise ValueError("a world with paused copies or numbered episodes cannot be saved")
        return {
            "seed": self._seed,
            "restarts": self.restarts,
            "episode": arrays.episode.copy(),
            "clock": arrays.elapsed_steps.copy(),
            "digest": np.array([self._checksum(copy) for copy in range(self.num_envs)], np.int64),
            "actions": self._history.current_episodes(arrays.elapsed_steps),
        }

    def load(self, state: State) -> TimeStep:
        """Replay the saved episodes; where a copy's replay differs its episode starts again, with one warning."""
        if len(state["clock"]) != self.num_envs:
            raise ValueError(f"state holds {len(state['clock'])} copies, this world has {self.num_envs}")
        self._seed, self.restarts = int(state["seed"]), int(state["restarts"])
        arrays, starts = self._arrays, np.cumsum(state["clock"]) - state["clock"]
        arrays.episode[:], arrays.elapsed_steps[:] = state["episode"], 0
        arrays.paused[:] = False
        self._history.clear(int(state["clock"].max()))
        differing: dict[str, list[int]] = {}  # copies by reason
        for worker in self._workers:
            worker.set_seed(self._seed)
            for copy in worker.copies:
                start, length = int(starts[copy]), int(state["clock"][copy])
                actions = {agent_type: array[start : start + length] for agent_type, array in state["actions"].items()}
                failure = worker.replay(copy, actions, length)
                if failure is None and self._checksum(copy) == state["digest"][copy]:
                    self._history.restore(copy, actions, length)
                    continue
                why = "the last observation differs" if failure is None else failure.message
                if failure is not None and failure.process_died:
                    raise ExternalEnvError(f"{self.name}, copy {copy}, episode {arrays.episode[copy]}, replay: {why}")
                differing.setdefault(why, []).append(copy)
                self._restart_copy(worker, worker.call("reset", copy, True))
        for why, copies in differing.items():
            where = f"copy {copies[0]}" + f" and {len(copies) - 1} more" * (len(copies) > 1)
            log.warning("%s, %s: replay differs (%s); episodes start again. %s", self.name, where, why, FRESH_HINT)
        return self._start_timestep()

    @property
    def timestep(self) -> TimeStep:
        """The latest time step."""
        return self._timestep

    def episode_actions(self, copy: int) -> dict[str, Array]:
        """The actions of one copy in its current episode, `[T, A, …]` for each agent type."""
        return self._history.last(copy, int(self._arrays.elapsed_steps[copy]))

    def frame(self, copy: int, final: bool = False) -> Array:
        """The environment's own picture of one copy as it is now; `final` is ignored."""
        if not self.settings.render:
            raise CoterieError(f"{self.name}: nothing to draw; set world.render to true")
        return np.asarray(self._call_one("frame", copy))

    def ansi(self, copy: int, final: bool = False) -> str:
        """The picture for a terminal: two pixels per character."""
        return picture_to_ansi(self.frame(copy))

    def ask(self, copy: int, question: str, *arguments: Any) -> Any:
        """The answer of a method of one copy's environment; the method changes nothing."""
        return self._call_one("ask", copy, question, *arguments)

    def _call_one(self, method: str, copy: int, *arguments: Any) -> Any:
        """Call the worker that has this copy."""
        worker = next(worker for worker in self._workers if copy in worker.copies)
        answer = worker.call(method, copy, *arguments)
        if isinstance(answer, EnvFailure):
            raise ExternalEnvError(f"{self.name}, copy {copy}: {answer.message}")
        return answer

    def close(self) -> None:
        """Close the environments and their processes."""
        self._finalizer()

    def _call_all(self, method: str, *arguments: Any) -> None:
        """Call all workers at once, then restart the copies that failed."""
        for worker in self._workers:
            worker.send(method, worker.copies.start, *arguments)
        failures = receive_results(self._workers)  # read every reply before the next call
        for worker, failure in zip(self._workers, failures, strict=True):
            while failure is not None:
                self._restart_copy(worker, failure)
                failure = worker.call(method, failure.copy + 1, *arguments)

    def _restart_copy(self, worker: Worker, failure: EnvFailure | None) -> None:
        """Restart a failed copy until its reset succeeds; raise when `restarts` is exhausted."""
        while failure is not None:
            copy, arrays = failure.copy, self._arrays
            location = f"{self.name}, copy {copy}, episode {arrays.episode[copy]}"
            step = "reset" if failure.during == "reset" else f"step {arrays.elapsed_steps[copy] + 1}"
            if self.restarts >= self.settings.restarts:
                used = f" (all {self.settings.restarts} restarts are used up)" if self.settings.restarts else ""
                raise ExternalEnvError(f"{location}, {step}: {failure.message}{used}")
            self.restarts += 1
            log.warning("%s, %s: %s; restart %d", location, step, failure.message, self.restarts)
            if failure.during == "step":
                self._truncate(copy)
            if failure.process_died:
                self._restart_process(worker, copy)
            arrays.episode[copy] += 1
            failure = worker.call("reset", copy, True)

    def _truncate(self, copy: int) -> None:
        """Mark a copy's episode as truncated at its last valid observation."""
        for agent_type in self._arrays.agent_types.values():
            agent_type.reward[copy] = 0
            agent_type.terminated[copy] = False
            agent_type.truncated[copy] = ~agent_type.done[copy]
        self._arrays.ended[copy], self._arrays.success[copy] = True, False

    def _restart_process(self, worker: Worker, failed: int) -> None:
        """Start a child process again and replay its other copies to where they were."""
        rows = slice(worker.copies.start, worker.copies.stop)
        saved = [(array, array[rows].copy()) for array in self._arrays.all]
        elapsed_steps = self._arrays.elapsed_steps.copy()
        checksums = {copy: self._checksum(copy) for copy in worker.copies}
        worker.restart(self._seed)
        for copy in worker.copies:
            if copy == failed:
                continue
            # Copies after the failed one have not taken the latest actions yet.
            actions = self._history.last(copy, int(elapsed_steps[copy]), skip=int(copy > failed))
            failure = worker.replay(copy, actions, int(elapsed_steps[copy]))
            if failure is not None or (elapsed_steps[copy] and self._checksum(copy) != checksums[copy]):
                why = "the last observation differs" if failure is None else failure.message
                raise ExternalEnvError(
                    f"{self.name}, copy {copy}: lost with its process when copy {failed} failed, and its replay "
                    f"differs ({why}); set world.processes to the number of copies to give each its own process"
                )
        for array, values in saved:
            array[rows] = values

    def _start_timestep(self) -> TimeStep:
        """The time step after `reset` or `load`: no rewards, no ends."""
        for agent_type in self._arrays.agent_types.values():
            agent_type.reward[:], agent_type.terminated[:], agent_type.truncated[:] = 0, False, False
        self._arrays.ended[:] = False
        return self._timestep

    def _checksum(self, copy: int) -> int:
        """A checksum of the observations of one copy."""
        checksum = 0
        for agent_type in self._arrays.agent_types.values():
            for part in arrays_of(agent_type.observation).values():
                checksum = zlib.crc32(part[copy].tobytes(), checksum)
        return checksum

    def _check_actions(self, name: str) -> None:
        """Raise `ValueError` for an action outside its space: the caller's error, not the environment's."""
        arrays, agent_type = self._arrays.agent_types[name], self.agent_types[name]
        valid: Array
        match agent_type.action:
            case Discrete(n):
                valid = (arrays.action >= 0) & (arrays.action < n)
            case MultiDiscrete(sizes):
                valid = np.asarray(((arrays.action >= 0) & (arrays.action < sizes)).all(-1))
            case Box(shape):
                valid = np.asarray(np.isfinite(arrays.action).all(tuple(range(2, 2 + len(shape)))))
        valid = valid | ~arrays.acting
        if not valid.all():
            copy, agent = np.argwhere(~valid)[0]
            raise ValueError(
                f"copy {copy}, agent {agent_type.agents[agent]!r}: expected an action of {agent_type.action}, "
                f"got {arrays.action[copy, agent]}"
            )


def _fast_check(space: ActionSpace) -> Callable[[list[Any]], bool]:
    """A check that accepts only valid actions; for a few numbers Python's functions are faster than NumPy's."""
    match space:
        case Discrete(n):
            return lambda actions: min(actions) >= 0 and max(actions) < n
        case Box():
            return lambda actions: isfinite(sum(actions))
    return lambda actions: False


class _ActionHistory:
    """The latest actions of all copies, `[T, N, A, …]` for each agent type, at least for the current episodes."""

    def __init__(self, agent_types: Mapping[str, AgentType], num_envs: int) -> None:
        self.capacity, self.length = 256, 0
        self.arrays = {
            name: np.zeros((self.capacity, num_envs, len(k.agents), *action_shape(k.action)), action_dtype(k.action))
            for name, k in agent_types.items()
        }

    def append(self, arrays: BatchArrays) -> None:
        """Record the actions of the coming step."""
        if self.length == self.capacity:
            self._keep(int(arrays.elapsed_steps.max()))
        for name, agent_type in arrays.agent_types.items():
            self.arrays[name][self.length] = agent_type.action
        self.length += 1

    def _keep(self, steps: int) -> None:
        """Drop all but the last `steps` steps and leave room for as many again."""
        self.capacity = max(self.capacity, 2 * steps)
        for name, old in self.arrays.items():
            new = np.zeros((self.capacity, *old.shape[1:]), old.dtype)
            new[:steps] = old[self.length - steps : self.length]
            self.arrays[name] = new
        self.length = steps

    def last(self, copy: int, steps: int, skip: int = 0) -> dict[str, Array]:
        """The last actions of one copy, without the latest `skip` steps."""
        stop = self.length - skip
        return {name: array[stop - steps : stop, copy] for name, array in self.arrays.items()}

    def current_episodes(self, elapsed_steps: Array) -> dict[str, Array]:
        """The actions of all copies in their current episodes, concatenated copy by copy."""
        parts = [self.last(copy, int(steps)) for copy, steps in enumerate(elapsed_steps)]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.arrays}

    def clear(self, longest: int = 0) -> None:
        """Drop everything and leave room to `restore` episodes of up to `longest` steps."""
        self.capacity = max(self.capacity, longest)
        self._keep(0)
        self.length = longest

    def restore(self, copy: int, actions: Mapping[str, Array], steps: int) -> None:
        """Set the actions of one copy's current episode."""
        for name, own in self.last(copy, steps).items():
            own[:] = actions[name]


class WorldWrapper(World):
    """Passes every call on to an inner world that the adapter chose by name and settings."""

    draws_final = False

    def __init__(self, inner: World) -> None:
        self.inner: Any = inner
        self.limits_episodes = inner.limits_episodes
        self.agent_types, self.num_envs, self.simultaneous = inner.agent_types, inner.num_envs, inner.simultaneous

    def reset(self, seed: int) -> TimeStep:
        """Reset every copy."""
        timestep: TimeStep = self.inner.reset(seed)
        return timestep

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Step every copy; a copy whose episode ends is reset at once."""
        timestep: TimeStep = self.inner.step(actions)
        return timestep

    def number_episodes(self) -> None:
        """Number episodes through all copies from the next reset on, if the inner world can."""
        if isinstance(self.inner, CostlySteps):
            self.inner.number_episodes()

    def pause(self, copies: Array) -> None:
        """Stop stepping these copies until the next reset, if the inner world can."""
        if isinstance(self.inner, CostlySteps):
            self.inner.pause(copies)

    def save(self) -> State:
        """The state of the inner world."""
        state: State = self.inner.save()
        return state

    def load(self, state: State) -> TimeStep:
        """Return to a saved state."""
        timestep: TimeStep = self.inner.load(state)
        return timestep

    def frame(self, copy: int, final: bool = False) -> Array:
        """A picture of one copy; needs `render: true`."""
        picture: Array = self.inner.frame(copy, final)
        return picture

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same for a terminal."""
        text: str = self.inner.ansi(copy, final)
        return text


def picture_to_ansi(picture: Array, columns: int = 72) -> str:
    """A picture as terminal text: each character shows an upper and a lower pixel in its two colours."""
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


def import_external(module: str, install: str) -> Any:
    """Import a third-party module, or raise an error that says how to install it."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # pygame prints a greeting otherwise
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CoterieError(f"'{error.name}' is not installed: pip install {install}") from None


def import_user_module(module: str, world: str) -> Any:
    """Import the user's module that a world's name begins with."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        own = error.name in module.split(".")  # the environment's module; otherwise it imports a missing package
        cure = (
            "found; install it, or start from the directory that holds it, or add that to PYTHONPATH"
            if own
            else "installed"
        )
        raise UnknownName(f"{world}: needs the module '{error.name}', which is not {cure}") from None


def latest_version(name: str, known: list[str]) -> str | None:
    """The name itself if known, otherwise its highest version among `name_v1`, `name-v2` …"""
    if name in known:
        return name
    versions = [k for k in known if re.fullmatch(re.escape(name) + r"[_-]v\d+", k)]
    return max(versions, key=lambda k: int(re.findall(r"\d+$", k)[0]), default=None)
