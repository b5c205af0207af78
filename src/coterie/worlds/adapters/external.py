"""Worlds made of third-party environments: seeds, exact resume by replay, failures and restarts.

`ExternalWorld` is the world; a `ExternalEnv` is one copy of somebody else's environment, written by an adapter
(`gymnasium.py`, `pettingzoo.py`). Where guests run, here or in child processes, is in `guest_hosts.py`, the
arrays that they write into are in `guest_stage.py`.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

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
    map_tree,
)
from coterie.core.validation import at_least, positive
from coterie.core.world import World
from coterie.worlds.adapters.batch import Arrays, ExternalEnvError, Failure, Maker, as_text
from coterie.worlds.adapters.workers import Host, WorkerSpec, close_all, open_hosts

log = logging.getLogger("coterie")
CURE = "If the environment carries something over from episode to episode, world.fresh: true helps."


@dataclass(frozen=True)
class ExternalSettings:
    """What every adapter can be told."""

    id: str  # the environment's name, the part of the world's name behind the slash
    options: dict[str, Any] = field(default_factory=dict)  # handed to the environment's constructor
    processes: int = 0  # child processes at most, among which the copies are divided; 0: all in this process
    timeout: float = 60.0  # seconds that a child process may take for one step
    restarts: int = 0  # failed episodes to cut short and go on from, in all; 0: the first failure is an error
    max_episode_steps: int | None = None  # cut episodes here; None: where the environment's registration says
    fresh: bool = False  # build the environment anew for every episode, if it carries something over
    render: bool = False  # make pictures possible, which slows some environments down

    def __post_init__(self) -> None:
        at_least("processes", self.processes, 0)
        positive("timeout", self.timeout)
        at_least("restarts", self.restarts, 0)
        if self.max_episode_steps is not None:
            at_least("max_episode_steps", self.max_episode_steps, 1)


class ExternalWorld:
    """N copies of a third-party environment.

    Every episode is seeded from (seed, copy, episode); a saved state holds the actions of the present
    episodes and is resumed by playing them again. `restarts` counts the episodes that failed and were cut.
    """

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool

    def __init__(self, name: str, settings: ExternalSettings, make: Maker, num_envs: int) -> None:
        at_least("num_envs", num_envs, 1)
        self.name, self.settings, self.num_envs = name, settings, num_envs
        self.restarts = 0
        processes = min(settings.processes, num_envs)  # one copy is enough to film, or to see what fits
        lodging = WorkerSpec(name, make, processes, settings.timeout, settings.fresh)
        self._hosts, self._env_spec, self._arrays = open_hosts(lodging, num_envs)
        self._closing = weakref.finalize(self, close_all, self._hosts)
        for note in self._env_spec.notes:
            log.warning("%s: %s", name, note)
        self.agent_types, self.simultaneous = self._env_spec.agent_types, self._env_spec.simultaneous
        self._seed = 0
        self._history = _History(self.agent_types, num_envs)
        self._few_are_legal = {name: _quick_look(agent_type.action) for name, agent_type in self.agent_types.items()}
        arrays = self._arrays
        timestep = {
            agent_type: AgentStep(a.observation, a.acting, a.reward, a.terminated, a.truncated, a.final, a.mask)
            for agent_type, a in arrays.agent_types.items()
        }
        self._timestep = TimeStep(timestep, arrays.ended, arrays.success if self._env_spec.success else None)

    def reset(self, seed: int) -> TimeStep:
        """Begin episode 0 of every copy."""
        self._seed = seed
        self._arrays.episode[:], self._arrays.clock[:] = 0, 0
        self._history.clear()
        self._everywhere("start", seed)
        return self._at_rest()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Step every copy; one that ends is reset at once."""
        arrays = self._arrays
        for name, agent_type in arrays.agent_types.items():
            given = np.asarray(actions[name])
            if given.shape != agent_type.action.shape:
                raise ValueError(f"actions of {name!r} must have shape {agent_type.action.shape}, got {given.shape}")
            if given.dtype == agent_type.action.dtype:
                agent_type.action[...] = given
            else:
                np.copyto(agent_type.action, given, casting="same_kind")
            if agent_type.action.size > 64 or not self._few_are_legal[name](agent_type.action.ravel().tolist()):
                self._refuse_illegal(name)
            if self.settings.restarts:  # what to fall back on when a copy fails
                map_tree(np.copyto, agent_type.final, agent_type.observation)
        self._history.add(arrays)
        self._everywhere("step")
        return self._timestep

    def save(self) -> State:
        """Which episodes are being played, and what has been done in them."""
        arrays = self._arrays
        return {
            "seed": self._seed,
            "restarts": self.restarts,
            "episode": arrays.episode.copy(),
            "clock": arrays.clock.copy(),
            "digest": np.array([self._digest(copy) for copy in range(self.num_envs)], np.int64),
            "actions": self._history.played(arrays.clock),
        }

    def load(self, state: State) -> TimeStep:
        """Play the saved episodes again; one that comes out differently is named and begun anew."""
        if len(state["clock"]) != self.num_envs:
            raise ValueError(f"state holds {len(state['clock'])} copies, this world has {self.num_envs}")
        self._seed, self.restarts = int(state["seed"]), int(state["restarts"])
        arrays, starts = self._arrays, np.cumsum(state["clock"]) - state["clock"]
        arrays.episode[:], arrays.clock[:] = state["episode"], 0
        self._history.clear(int(state["clock"].max()))
        for host in self._hosts:
            host.use_seed(self._seed)
            for copy in host.num_envs:
                start, length = int(starts[copy]), int(state["clock"][copy])
                played = {agent_type: array[start : start + length] for agent_type, array in state["actions"].items()}
                failure = host.replay(copy, played, length)
                if failure is None and self._digest(copy) == state["digest"][copy]:
                    self._history.put(copy, played, length)
                    continue
                why = "the last observation is another" if failure is None else failure.text
                if failure is not None and failure.dead:
                    raise ExternalEnvError(f"{self.name}, copy {copy}, episode {arrays.episode[copy]}, replay: {why}")
                log.warning("%s, copy %d: replay differs (%s); its episode starts anew. %s", self.name, copy, why, CURE)
                self._settle(host, host.call("begin", copy, True))
        return self._at_rest()

    def frame(self, copy: int) -> Array:
        """The environment's own picture of one copy."""
        if not self.settings.render:
            raise CoterieError(f"{self.name}: nothing to draw; set world.render to true")
        host = next(host for host in self._hosts if copy in host.num_envs)
        picture = host.call("frame", copy)
        if isinstance(picture, Failure):
            raise ExternalEnvError(f"{self.name}, copy {copy}: {picture.text}")
        return np.asarray(picture)

    def ansi(self, copy: int) -> str:
        """The picture for a terminal: two pixels in every letter."""
        return as_text(self.frame(copy))

    def close(self) -> None:
        """Let go of the environments and their processes."""
        self._closing()

    def _everywhere(self, verb: str, *arguments: Any) -> None:
        """Ask all hosts at once, then see to whatever failed."""
        for host in self._hosts:
            host.ask(verb, host.num_envs.start, *arguments)
        answers = [host.answer() for host in self._hosts]  # all of them, lest one be taken for a later one
        for host, failure in zip(self._hosts, answers, strict=True):
            while failure is not None:
                self._settle(host, failure)
                failure = host.call(verb, failure.copy + 1, *arguments)

    def _settle(self, host: Host, failure: Failure | None) -> None:
        """Restart a failed copy until it is well, within the budget."""
        while failure is not None:
            copy, arrays = failure.copy, self._arrays
            where = f"{self.name}, copy {copy}, episode {arrays.episode[copy]}"
            step = "reset" if failure.during == "reset" else f"step {arrays.clock[copy] + 1}"
            if self.restarts >= self.settings.restarts:
                used = f" (all {self.settings.restarts} restarts are used up)" if self.settings.restarts else ""
                raise ExternalEnvError(f"{where}, {step}: {failure.text}{used}")
            self.restarts += 1
            log.warning("%s, %s: %s; restart %d", where, step, failure.text, self.restarts)
            if failure.during == "step":
                self._cut(copy)
            if failure.dead:
                self._bring_back(host, copy)
            arrays.episode[copy] += 1
            failure = host.call("begin", copy, True)

    def _cut(self, copy: int) -> None:
        """Say that a copy's episode was truncated where it last made sense."""
        for agent_type in self._arrays.agent_types.values():
            agent_type.reward[copy] = 0
            agent_type.terminated[copy] = False
            agent_type.truncated[copy] = ~agent_type.gone[copy]
        self._arrays.ended[copy], self._arrays.success[copy] = True, False

    def _bring_back(self, host: Host, failed: int) -> None:
        """Start a child process again and play its other copies to where they were."""
        held = [(array, array[host.num_envs.start : host.num_envs.stop].copy()) for array in self._arrays.flat]
        clock = self._arrays.clock.copy()
        digests = {copy: self._digest(copy) for copy in host.num_envs}
        host.revive(self._seed)
        for copy in host.num_envs:
            if copy == failed:
                continue
            # Copies behind the failed one have not taken the latest actions yet.
            played = self._history.of(copy, int(clock[copy]), ago=int(copy > failed))
            failure = host.replay(copy, played, int(clock[copy]))
            if failure is not None or (clock[copy] and self._digest(copy) != digests[copy]):
                why = "the last observation is another" if failure is None else failure.text
                raise ExternalEnvError(
                    f"{self.name}, copy {copy}: lost with its process when copy {failed} failed, and its replay "
                    f"differs ({why}); with processes equal to copies each has a process of its own"
                )
        for array, values in held:
            array[host.num_envs.start : host.num_envs.stop] = values

    def _at_rest(self) -> TimeStep:
        for agent_type in self._arrays.agent_types.values():
            agent_type.reward[:], agent_type.terminated[:], agent_type.truncated[:] = 0, False, False
        self._arrays.ended[:] = False
        return self._timestep

    def _digest(self, copy: int) -> int:
        """A checksum of what the agents of a copy see."""
        checksum = 0
        for agent_type in self._arrays.agent_types.values():
            parts = (
                agent_type.observation.values()
                if isinstance(agent_type.observation, dict)
                else (agent_type.observation,)
            )
            for part in parts:
                checksum = zlib.crc32(part[copy].tobytes(), checksum)
        return checksum

    def _refuse_illegal(self, name: str) -> None:
        """An action outside its space is the caller's mistake, not the guest's."""
        arrays, agent_type = self._arrays.agent_types[name], self.agent_types[name]
        good: Array
        match agent_type.action:
            case Discrete(n):
                good = (arrays.action >= 0) & (arrays.action < n)
            case MultiDiscrete(sizes):
                good = np.asarray(((arrays.action >= 0) & (arrays.action < sizes)).all(-1))
            case Box(shape):
                good = np.asarray(np.isfinite(arrays.action).all(tuple(range(2, 2 + len(shape)))))
        good = good | ~arrays.acting
        if not good.all():
            copy, agent = np.argwhere(~good)[0]
            raise ValueError(
                f"copy {copy}, agent {agent_type.agents[agent]!r}: expected an action of {agent_type.action}, "
                f"got {arrays.action[copy, agent]}"
            )


def _quick_look(space: ActionSpace) -> Callable[[list[Any]], bool]:
    """Whether a few actions are surely legal; on so few, Python's own functions are faster than NumPy's."""
    match space:
        case Discrete(n):
            return lambda few: min(few) >= 0 and max(few) < n
        case Box():
            return lambda few: isfinite(sum(few))
    return lambda few: False


class _History:
    """The latest actions of all copies, `[timestep, N, A, …]` for each kind, as far back as any episode reaches."""

    def __init__(self, agent_types: Mapping[str, AgentType], num_envs: int) -> None:
        self.room, self.now = 256, 0
        self.arrays = {
            name: np.zeros((self.room, num_envs, len(k.agents), *action_shape(k.action)), action_dtype(k.action))
            for name, k in agent_types.items()
        }

    def add(self, arrays: Arrays) -> None:
        """Note the actions about to be taken."""
        if self.now == self.room:
            self._forget(int(arrays.clock.max()))
        for name, agent_type in arrays.agent_types.items():
            self.arrays[name][self.now] = agent_type.action
        self.now += 1

    def _forget(self, kept: int) -> None:
        """Keep that many ticks and make room for as many again."""
        self.room = max(self.room, 2 * kept)
        for name, old in self.arrays.items():
            new = np.zeros((self.room, *old.shape[1:]), old.dtype)
            new[:kept] = old[self.now - kept : self.now]
            self.arrays[name] = new
        self.now = kept

    def of(self, copy: int, length: int, ago: int = 0) -> dict[str, Array]:
        """The last actions of one copy, up to some ticks ago."""
        stop = self.now - ago
        return {name: array[stop - length : stop, copy] for name, array in self.arrays.items()}

    def played(self, clock: Array) -> dict[str, Array]:
        """All copies' actions in their present episodes, one copy after the other."""
        parts = [self.of(copy, int(length)) for copy, length in enumerate(clock)]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.arrays}

    def clear(self, longest: int = 0) -> None:
        """Forget everything, and be ready to be told episodes of that length."""
        self.room = max(self.room, longest)
        self._forget(0)
        self.now = longest

    def put(self, copy: int, played: Mapping[str, Array], length: int) -> None:
        """Take over what was done in one copy."""
        for name, actions in self.of(copy, length).items():
            actions[:] = played[name]


class Hosted:
    """A world by name: everything is passed on to the world that the adapter chose."""

    def __init__(self, inner: World) -> None:
        self.inner: Any = inner
        self.agent_types, self.num_envs, self.simultaneous = inner.agent_types, inner.num_envs, inner.simultaneous

    def reset(self, seed: int) -> TimeStep:
        """Start every copy anew."""
        timestep: TimeStep = self.inner.reset(seed)
        return timestep

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Step every copy; one that ends is reset at once."""
        timestep: TimeStep = self.inner.step(actions)
        return timestep

    def save(self) -> State:
        """All that decides the future."""
        state: State = self.inner.save()
        return state

    def load(self, state: State) -> TimeStep:
        """Return to a saved moment."""
        timestep: TimeStep = self.inner.load(state)
        return timestep

    def frame(self, copy: int) -> Array:
        """A picture of one copy; `render` must have been set."""
        picture: Array = self.inner.frame(copy)
        return picture

    def ansi(self, copy: int) -> str:
        """The same for a terminal."""
        text: str = self.inner.ansi(copy)
        return text


def import_external(module: str, install: str) -> Any:
    """A third-party module, or an error that says how to install it."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would end up in our output
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CoterieError(f"'{error.name}' is not installed: pip install {install}") from None


def import_own(module: str, world: str) -> Any:
    """The module of one's own that a world's name begins with."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnknownName(f"{world}: needs the module '{error.name}', which is not installed") from None


def newest(name: str, known: list[str]) -> str | None:
    """The name itself if known, else its highest version among `name_v1`, `name-v2` …"""
    if name in known:
        return name
    versions = [k for k in known if re.fullmatch(re.escape(name) + r"[_-]v\d+", k)]
    return max(versions, key=lambda k: int(re.findall(r"\d+$", k)[0]), default=None)
