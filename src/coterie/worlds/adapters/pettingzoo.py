"""PettingZoo environments by name, parallel or AEC, and the MPE environments of `mpe2`.

Parallel environments become simultaneous worlds; AEC environments become worlds in which one agent acts at a time.
Agents with equal spaces form an agent type. Rewards are read after every step and passed on at once.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.core.text import TextCodec
from coterie.core.types import AgentType, Array, CoterieError, UnknownName, map_tree
from coterie.worlds.adapters.batch import (
    AgentTypeArrays,
    EnvArrays,
    EnvSpec,
    InvalidEnvOutput,
    Warn,
    as_bool,
    as_reward,
    warn_once,
)
from coterie.worlds.adapters.external import (
    ExternalSettings,
    ExternalWorld,
    WorldWrapper,
    has_info_masks,
    import_external,
    import_user_module,
    latest_version,
)
from coterie.worlds.adapters.text import ObservationText


@dataclass(frozen=True)
class PettingZooSettings(ExternalSettings):
    """A PettingZoo environment: `classic/tictactoe_v3`, or your own `package.module` or `package.module:factory`."""

    api: Literal["auto", "parallel", "aec"] = "auto"  # auto: the parallel API where it exists
    late: bool = False  # agents may appear late although all are present when the first episode starts
    channels: Literal["auto", "first", "last"] = "auto"  # the axis of channels in pictures; auto: by their shape
    observe_all: bool = False  # AEC: ask idle agents for observations too, for critics that see everybody's


@dataclass(frozen=True)
class MPESettings(PettingZooSettings):
    """An MPE environment: `simple_spread`, `simple_tag` …; without a version, the latest."""


class PettingZooWorld(WorldWrapper):
    """N copies of a PettingZoo environment."""

    def __init__(self, settings: PettingZooSettings, num_envs: int) -> None:
        make_env = functools.partial(make_pettingzoo, settings)
        super().__init__(ExternalWorld(f"pettingzoo/{settings.id}", settings, make_env, num_envs))

    def text_codec(self, agent_type: str) -> TextCodec:
        """Describes observations in words."""
        return ObservationText(self, agent_type)


class MPEWorld(WorldWrapper):
    """N copies of an environment of mpe2."""

    def __init__(self, settings: MPESettings, num_envs: int) -> None:
        super().__init__(ExternalWorld(f"mpe/{settings.id}", settings, functools.partial(make_mpe, settings), num_envs))


# Building -----------------------------------------------------------------------------------------------


def make_pettingzoo(settings: PettingZooSettings) -> ExternalParallelEnv | ExternalAECEnv:
    """Build one environment."""
    import_external("pettingzoo", "'coterie[worlds]'")
    family, slash, name = settings.id.partition("/")
    if not slash:
        module, _, factory = settings.id.partition(":")
        return _build(import_user_module(module, f"pettingzoo/{settings.id}"), factory, settings)
    try:
        package = importlib.import_module(f"pettingzoo.{family}")
    except ModuleNotFoundError:
        raise UnknownName(f"pettingzoo/{settings.id}: PettingZoo has no family '{family}'") from None
    return _build(_find(package, name, "pettingzoo", f"{family}/", f"'pettingzoo[{family}]'"), "", settings)


def make_mpe(settings: MPESettings) -> ExternalParallelEnv | ExternalAECEnv:
    """Build one environment of mpe2."""
    return _build(_find(import_external("mpe2", "mpe2"), settings.id, "mpe", "", "mpe2"), "", settings, "mpe")


def _find(package: Any, name: str, family: str, prefix: str, install: str) -> Any:
    """A package's module of that name, or of its latest version."""
    known = [found.name for found in pkgutil.iter_modules(package.__path__) if re.search(r"_v\d+$", found.name)]
    chosen = latest_version(name, known)
    if chosen is None:
        other = latest_version(re.sub(r"_v\d+$", "", name), known)  # the same in another version
        close = [other] if other else difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"did you mean '{family}/{prefix}{close[0]}'?" if close else f"there are {', '.join(known)}"
        raise UnknownName(f"{family}/{prefix}{name}: no such environment; {hint}")
    return import_external(f"{package.__name__}.{chosen}", install)


def _build(
    module: Any, factory: str, settings: PettingZooSettings, family: str = "pettingzoo"
) -> ExternalParallelEnv | ExternalAECEnv:
    from pettingzoo import AECEnv, ParallelEnv

    functions = {"parallel": "parallel_env", "aec": "env"}
    wanted = [functions[settings.api]] if settings.api != "auto" else [*functions.values()]
    names = [factory] if factory else [name for name in wanted if name in vars(module)]
    if not names:
        raise CoterieError(f"{module.__name__}: expected a function {' or '.join(wanted)}, got none")
    options = settings.options | ({"render_mode": "rgb_array"} if settings.render else {})
    make = functools.partial(getattr(module, names[0]), **options)
    env = make()
    name = f"{family}/{settings.id}"
    if isinstance(env, ParallelEnv):
        info_masks = has_info_masks(settings, make, parallel_shows_mask)
        return ExternalParallelEnv(env, settings, name, settings.channels, settings.late, info_masks)
    if isinstance(env, AECEnv):
        info_masks = has_info_masks(settings, make, _aec_shows_mask)
        return ExternalAECEnv(env, settings, name, settings.channels, info_masks, settings.observe_all)
    raise CoterieError(f"{module.__name__}: expected a ParallelEnv or an AECEnv, got {type(env).__name__}")


def _holds_mask(infos: Mapping[Any, Any]) -> bool:
    return any(isinstance(info, Mapping) and "action_mask" in info for info in infos.values())


def parallel_shows_mask(env: Any) -> bool:
    """Whether a mask is in the infos of the first observations or the second."""
    if _holds_mask(env.reset(seed=0)[1]):
        return True
    return _holds_mask(env.step({agent: _sample(env, agent) for agent in env.agents})[4])


def _aec_shows_mask(env: Any) -> bool:
    """Whether a mask is in the infos before each agent's first turn."""
    env.reset(seed=0)
    for _ in env.possible_agents:
        if _holds_mask(env.infos):
            return True
        env.step(_sample(env, env.agent_selection))
    return _holds_mask(env.infos)


def _sample(env: Any, agent: Any) -> Any:
    space = env.action_space(agent)
    space.seed(0)
    return space.sample()


# Agents and their arrays --------------------------------------------------------------------------------


class AgentSlot(NamedTuple):
    """One agent's column in the arrays, with functions that write its observation and read its action."""

    arrays: AgentTypeArrays
    column: int
    write_observation: Callable[[Any], None]
    read_action: Callable[[], Any]


class EnvAgents:
    """The agents of one environment: groups them into agent types, and writes their results into the arrays."""

    def __init__(self, env: Any, settings: ExternalSettings, name: str, channels: Any, info_masks: bool) -> None:
        from coterie.worlds.adapters import actions, spaces  # import gymnasium

        self.spaces, self.actions, self.env = spaces, actions, env
        self.limit = settings.max_episode_steps or 2**62
        self.weights = settings.scalarize
        self.warn: Warn = functools.partial(warn_once, name)
        self.names = list(env.possible_agents)
        self.public_names = public_names(self.names)
        self.layouts = {
            a: spaces.convert_observation_space(env.observation_space(a), channels, text=settings.text)
            for a in self.names
        }
        self.action_layouts = {
            a: actions.convert_action_space(env.action_space(a), settings.actions) for a in self.names
        }
        masks = {
            a: actions.has_mask(self.action_layouts[a], self.layouts[a].mask is not None, info_masks, a)
            for a in self.names
        }
        self.unread_masks = settings.actions.masks == "auto" and not any(masks.values())
        groups: list[tuple[Any, list[Any]]] = []
        for agent in self.names:
            key = (self.layouts[agent].space, self.action_layouts[agent].space, masks[agent])
            same = next((members for other, members in groups if other == key), None)
            if same is None:
                groups.append((key, [agent]))
            else:
                same.append(agent)
        self.agent_types: dict[str, AgentType] = {}
        self.masked: list[str] = []
        self.texts: dict[str, tuple[str, ...]] = {}
        self.columns: dict[Any, tuple[str, int]] = {}  # agent type and column of each agent
        for (observation, action, masked), members in groups:
            named = tuple(self.public_names[agent] for agent in members)
            type_name = agent_type_name(named, self.agent_types)
            self.agent_types[type_name] = AgentType(named, observation, action)
            self.columns |= {agent: (type_name, column) for column, agent in enumerate(members)}
            self.masked += [type_name] * masked
            self.texts[type_name] = self.layouts[members[0]].texts
        found = [layout.warnings for layout in self.layouts.values()]
        found += [layout.warnings for layout in self.action_layouts.values()]
        renamed = [f"{agent!r} is called {name!r}" for agent, name in self.public_names.items() if str(agent) != name]
        found += [(f"agents are renamed: {', '.join(renamed)}",)] if renamed else []
        self.warnings = tuple(sorted({warning for warnings in found for warning in warnings}))

    def env_spec(self, simultaneous: bool) -> EnvSpec:
        """What the environment declares."""
        return EnvSpec(
            self.agent_types,
            simultaneous,
            tuple(self.masked),
            warnings=self.warnings,
            limited=self.limit < 2**62,
            texts=self.texts,
        )

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        self.arrays = list(arrays.values())
        self.slots: dict[Any, AgentSlot] = {}
        for agent, (agent_type, column) in self.columns.items():
            own = arrays[agent_type]
            write = self.spaces.observation_writer(self.layouts[agent], own.observation, column, self.warn)
            read = self.actions.action_reader(self.action_layouts[agent], own.action, column)
            self.slots[agent] = AgentSlot(own, column, write, read)

    def start_episode(self) -> None:
        """Clear observations and `done`. Rewards and ends of the last episode's final step stay to be read."""
        self.elapsed_steps = 0
        for arrays in self.arrays:
            map_tree(_zero, arrays.observation)
            arrays.done[:] = False
            _set_idle(arrays)

    def start_step(self) -> None:
        """Clear rewards, ends, `acting` and masks."""
        for arrays in self.arrays:
            arrays.reward[:], arrays.terminated[:], arrays.truncated[:] = 0, False, False
            _set_idle(arrays)

    def write(self, agent: Any, observation: Any, info: Any = None, acting: bool = False) -> None:
        """Write one agent's observation and `acting` and, if it acts, its action mask."""
        slot = self.slots[agent]
        slot.write_observation(observation)
        mask, column = slot.arrays.mask, slot.column
        if mask is not None:
            if not acting:
                mask[column] = True  # all actions of an idle agent are legal, so that a softmax is finite
            elif (path := self.layouts[agent].mask) is not None:
                self.actions.write_mask(self.spaces.part_at(observation, path), mask[column], agent)
            elif isinstance(info, Mapping) and "action_mask" in info:
                self.actions.write_mask(info["action_mask"], mask[column], agent)
        elif self.unread_masks and acting and isinstance(info, Mapping) and "action_mask" in info:
            self.unread_masks = False
            self.warn("an action_mask appears in infos after the episode's start; world.actions.masks: info reads it")
        slot.arrays.acting[column] = acting

    def is_done(self, agent: Any) -> bool:
        """Whether the agent's episode has ended."""
        slot = self.slots[agent]
        return bool(slot.arrays.done[slot.column])

    def add_reward(self, agent: Any, reward: Any) -> None:
        """Add to an agent's reward of this step; one that has ended cannot be credited."""
        amount = as_reward(reward, self.weights, self.warn)
        slot = self.slots.get(agent)
        if slot is not None and not slot.arrays.done[slot.column]:
            slot.arrays.reward[slot.column] += amount
        elif amount:
            self.warn(f"a reward of {agent!r} after its end is dropped; pay it in the step in which the agent ends")

    def write_end(self, agent: Any, terminated: Any, truncated: Any) -> bool:
        """Write an agent's end and return whether it has ended; an agent with both flags is terminated."""
        terminated = as_bool("terminated", terminated, self.warn)
        truncated = as_bool("truncated", truncated, self.warn)
        if not (terminated or truncated):
            return False
        arrays, column = self.slots[agent].arrays, self.slots[agent].column
        arrays.terminated[column], arrays.truncated[column] = terminated, not terminated
        arrays.done[column], arrays.acting[column] = True, False
        return True

    def finish_step(self) -> bool:
        """Count the step and return whether the episode is over; its end also ends agents that never appeared."""
        self.elapsed_steps += 1
        acting = any(arrays.acting.any() for arrays in self.arrays)
        if acting and self.elapsed_steps < self.limit:
            return False
        truncate = acting or any(arrays.truncated.any() for arrays in self.arrays)
        for arrays in self.arrays:
            remaining = ~arrays.done
            (arrays.truncated if truncate else arrays.terminated)[remaining] = True
            arrays.acting[:] = False
        return True


def public_names(agents: Iterable[Any]) -> dict[Any, str]:
    """Names that can be used in settings and patterns: `agent[0]` becomes `agent_0`; names stay different."""
    names: dict[Any, str] = {}
    for agent in agents:
        name = plain = re.sub(r"[\[\](){}*?,=:'\"/\\]+", "_", str(agent)).strip("_") or "agent"
        number = 2
        while name in names.values():
            name, number = f"{plain}_{number}", number + 1
        names[agent] = name
    return names


def agent_type_name(agents: Sequence[str], taken: Iterable[str]) -> str:
    """The common part of the agents' names (`adversary` for `adversary_0`, `adversary_1`), made unique."""
    stems = list(dict.fromkeys(re.sub(r"[_-]?\d+$", "", agent) or "agent" for agent in agents))
    name, taken = "_".join(stems), set(taken)
    return name if name not in taken else next(f"{name}_{i}" for i in range(2, 99) if f"{name}_{i}" not in taken)


def _zero(array: Array) -> None:
    array[...] = 0


def _set_idle(arrays: AgentTypeArrays) -> None:
    arrays.acting[:] = False
    if arrays.mask is not None:
        arrays.mask[:] = True


def _entry(name: str, values: Any, agent: Any) -> Any:
    """One agent's entry of a dict that the environment returned."""
    try:
        return values[agent]
    except (KeyError, TypeError):
        got = [*values] if isinstance(values, Mapping) else type(values).__name__
        raise InvalidEnvOutput(f"{name} with an entry for {agent!r}", got) from None


def _check_possible_agents(env: Any) -> None:
    """All agents must be known before the first episode."""
    try:
        agents = list(env.possible_agents)
    except (AttributeError, TypeError):
        agents = []
    if not agents:
        raise CoterieError(
            f"{env}: expected possible_agents to name all agents that may ever appear, got none; "
            "the agents must be known before the first episode"
        )


# The two APIs -------------------------------------------------------------------------------------------


class ExternalParallelEnv:
    """One parallel environment: all present agents act together."""

    def __init__(
        self,
        env: Any,
        settings: ExternalSettings,
        name: str,
        channels: Any = "auto",
        late: bool = False,
        info_masks: bool = False,
    ) -> None:
        _check_possible_agents(env)
        self.env = env
        env.reset(seed=0)
        self.agents = EnvAgents(env, settings, name, channels, info_masks)
        self.late = late or set(env.agents) != set(self.agents.names)
        self.env_spec = self.agents.env_spec(simultaneous=not self.late)

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        self.agents.bind(arrays)

    def reset(self, seed: int) -> None:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed)
        agents = self.agents
        agents.start_episode()
        self.present = list(self.env.agents)
        if not self.late and set(self.present) != set(agents.names):
            raise InvalidEnvOutput(
                f"all of {agents.names} when an episode starts (if agents may appear late, set world.late: true)",
                self.present,
            )
        for agent in self.present:
            agents.write(agent, _entry("observations", observations, agent), infos.get(agent), acting=True)

    def step(self) -> bool:
        """Take one step of all present agents."""
        agents, env = self.agents, self.env
        returned = env.step({agent: agents.slots[agent].read_action() for agent in self.present})
        if not (isinstance(returned, tuple) and len(returned) == 5):
            raise InvalidEnvOutput("step to return five dicts", type(returned).__name__)
        observations, rewards, terminations, truncations, infos = returned
        agents.start_step()
        now = set(env.agents)
        if not isinstance(rewards, Mapping):
            raise InvalidEnvOutput("rewards to be a dict", type(rewards).__name__)
        for agent, reward in rewards.items():  # also of an agent that arrives
            agents.add_reward(agent, reward)
        for agent in self.present:
            if agent not in rewards:
                agents.warn(f"rewards have no entry for {agent!r}; it counts as 0")
            flags = [_entry(n, v, agent) for n, v in (("terminated", terminations), ("truncated", truncations))]
            ended = agents.write_end(agent, *flags)
            if not ended and agent not in now:
                raise InvalidEnvOutput(f"{agent!r} to be terminated or truncated before it leaves", "neither")
            if ended and isinstance(observations, Mapping) and agent not in observations:
                agents.warn(f"observations have no entry for {agent!r}, which has ended; its last one counts")
            else:
                agents.write(agent, _entry("observations", observations, agent))
        staying = [agent for agent in self.present if not agents.is_done(agent)]
        new = [agent for agent in env.agents if agent not in self.present]
        self.present = staying + new
        for agent in self.present:
            if agent not in agents.slots or agents.is_done(agent):
                raise InvalidEnvOutput("only agents that are possible and have not ended", repr(agent))
            agents.write(agent, _entry("observations", observations, agent), infos.get(agent), acting=True)
        return agents.finish_step()

    def success(self) -> bool:
        """PettingZoo does not define success."""
        return False

    def frame(self) -> Any:
        """The environment's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class ExternalAECEnv:
    """One AEC environment: one agent acts at a time, and only it is asked for its observation.

    Attributes are read as rarely as possible: each read passes through all of the environment's wrappers.
    """

    def __init__(
        self,
        env: Any,
        settings: ExternalSettings,
        name: str,
        channels: Any = "auto",
        info_masks: bool = False,
        observe_all: bool = False,
    ) -> None:
        _check_possible_agents(env)
        self.env, self.observe_all = env, observe_all
        env.reset(seed=0)
        self.agents = EnvAgents(env, settings, name, channels, info_masks)
        self.env_spec = self.agents.env_spec(simultaneous=False)

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        self.agents.bind(arrays)

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self.env.reset(seed=seed)
        self.agents.start_episode()
        self.turn = self.env.agent_selection
        self._write_observations(self.env.agents)
        if self.agents.is_done(self.turn):
            raise InvalidEnvOutput("an agent that can act after reset", "one that has ended")

    def step(self) -> bool:
        """Take the step of the selected agent."""
        agents, env = self.agents, self.env
        env.step(agents.slots[self.turn].read_action())
        agents.start_step()
        for agent, reward in env.rewards.items():
            agents.add_reward(agent, reward)
        for _ in range(len(agents.names) + 1):
            remaining, self.turn = env.agents, env.agent_selection
            self._write_ends(remaining)
            if not remaining or not agents.is_done(self.turn):
                break
            before = dict(env.rewards)
            env.step(None)  # the API removes an agent that has ended with an empty step
            for agent, reward in env.rewards.items():
                if np.any(reward != before.get(agent)):  # what did not change was paid before
                    agents.add_reward(agent, reward)
        else:
            raise InvalidEnvOutput("the turn to pass to an agent that still plays", self.turn)
        if remaining:
            cut = agents.elapsed_steps + 1 >= agents.limit  # everybody's last observation is needed
            self._write_observations(remaining if cut or self.observe_all else (self.turn,))
        return agents.finish_step()

    def _write_ends(self, remaining: Iterable[Any]) -> None:
        agents, env = self.agents, self.env
        terminations, truncations = env.terminations, env.truncations
        for agent in remaining:
            if (terminations[agent] or truncations[agent]) and not agents.is_done(agent):
                try:
                    agents.write(agent, env.observe(agent))
                except KeyError:
                    agents.warn(f"{agent!r}, which has ended, cannot be observed; its last observation counts")
                agents.write_end(agent, terminations[agent], truncations[agent])

    def _write_observations(self, wanted: Iterable[Any]) -> None:
        """Write the observations of some agents that still play; the selected one acts."""
        agents, env = self.agents, self.env
        for agent in wanted:
            if agent not in agents.slots:
                raise InvalidEnvOutput("only agents that are possible", repr(agent))
            if not agents.is_done(agent):
                acts = agent == self.turn
                agents.write(agent, env.observe(agent), env.infos.get(agent) if acts else None, acting=acts)

    def success(self) -> bool:
        """PettingZoo does not define success."""
        return False

    def frame(self) -> Any:
        """The environment's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
