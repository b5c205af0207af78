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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.text import TextCodec
from coterie.core.types import CoterieError, UnknownName
from coterie.worlds.adapters.batch import EnvArrays, InvalidEnvOutput
from coterie.worlds.adapters.env_agents import EnvAgents
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
    if family == "mpe":  # PettingZoo has left a stub that asks for mpe2
        raise UnknownName(f"pettingzoo/{settings.id}: PettingZoo has no MPE any more; set world.name=mpe/{name}")
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
    if names[0] not in dir(module):
        raise CoterieError(
            f"world.name: {family}/{settings.id}: the module '{module.__name__}' has no function '{names[0]}'"
        )
    options = settings.options | ({"render_mode": "rgb_array"} if settings.render else {})
    make = functools.partial(getattr(module, names[0]), **options)
    env = make()
    name = f"{family}/{settings.id}"
    if isinstance(env, ParallelEnv | AECEnv):
        _check_possible_agents(env)
        env.reset(seed=0)  # shows who is there when an episode starts
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
        agent = env.agent_selection
        seen = env.observe(agent)
        if isinstance(seen, Mapping) and "action_mask" in seen:  # it is read there; a move without it may be illegal
            return False
        env.step(_sample(env, agent))
    return _holds_mask(env.infos)


def _sample(env: Any, agent: Any) -> Any:
    space = env.action_space(agent)
    space.seed(0)
    return space.sample()


# The two APIs -------------------------------------------------------------------------------------------


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


class _ExternalPettingZooEnv:
    """Common parts of parallel and AEC environments."""

    def __init__(self, env: Any, settings: ExternalSettings, name: str, channels: Any, info_masks: bool) -> None:
        self.env = env
        self.agents = EnvAgents(env, settings, name, channels, info_masks)

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        self.agents.bind(arrays)

    def success(self) -> bool:
        """PettingZoo does not define success."""
        return False

    def frame(self) -> Any:
        """The environment's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class ExternalParallelEnv(_ExternalPettingZooEnv):
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
        super().__init__(env, settings, name, channels, info_masks)
        self.late = late or set(env.agents) != set(self.agents.names)
        self.env_spec = self.agents.env_spec(simultaneous=not self.late)

    def reset(self, seed: int) -> None:
        """Start an episode."""
        returned = self.env.reset(seed=seed)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise InvalidEnvOutput("reset to return (observations, infos)", type(returned).__name__)
        agents, observations, infos = self.agents, returned[0], self._infos(returned[1])
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
            got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
            raise InvalidEnvOutput("step to return (observations, rewards, terminations, truncations, infos)", got)
        observations, rewards, terminations, truncations, infos = returned
        infos = self._infos(infos)
        agents.start_step()
        now = set(env.agents)
        if not isinstance(rewards, Mapping):
            raise InvalidEnvOutput("rewards to be a dict", type(rewards).__name__)
        for agent, reward in rewards.items():  # also of an agent that arrives
            agents.add_reward(agent, reward)
        for agent in self.present:
            if agent not in rewards:
                agents.warn_of(agent, "rewards have no entry for {}; it counts as 0")
            flags = [_entry(n, v, agent) for n, v in (("terminated", terminations), ("truncated", truncations))]
            ended = agents.write_end(agent, *flags)
            if not ended and agent not in now:
                raise InvalidEnvOutput(f"{agent!r} to be terminated or truncated before it leaves", "neither")
            if not ended:
                continue  # written below
            if isinstance(observations, Mapping) and agent not in observations:
                agents.warn_of(agent, "observations have no entry for {}, which has ended; its last one counts")
            else:
                agents.write(agent, _entry("observations", observations, agent))
        staying = [agent for agent in self.present if not agents.is_done(agent)]
        new = [agent for agent in env.agents if agent not in self.present]
        self.present = staying + new
        for agent in self.present:
            if agent not in agents.slots or agents.is_done(agent):
                expected = "only agents that are possible and have not ended (one that comes back must not end before)"
                raise InvalidEnvOutput(expected, repr(agent))
            agents.write(agent, _entry("observations", observations, agent), infos.get(agent), acting=True)
        return agents.finish_step()

    def _infos(self, infos: Any) -> Mapping[Any, Any]:
        """The infos by agent; an environment may leave them out."""
        if isinstance(infos, Mapping):
            return infos
        self.agents.warn(f"infos are {type(infos).__name__} instead of a dict; ignored")
        return {}


class ExternalAECEnv(_ExternalPettingZooEnv):
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
        super().__init__(env, settings, name, channels, info_masks)
        self.observe_all = observe_all
        self.env_spec = self.agents.env_spec(simultaneous=False)

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self.env.reset(seed=seed)
        self.agents.start_episode()
        self.turn = self.env.agent_selection
        self._check_turn()
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
            if remaining:
                self._check_turn()
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

    def _check_turn(self) -> None:
        if self.turn not in self.agents.slots:
            raise InvalidEnvOutput("agent_selection to name a possible agent", repr(self.turn))

    def _write_ends(self, remaining: Iterable[Any]) -> None:
        agents, env = self.agents, self.env
        terminations, truncations = env.terminations, env.truncations
        for agent in remaining:
            if (terminations[agent] or truncations[agent]) and not agents.is_done(agent):
                try:
                    agents.write(agent, env.observe(agent))
                except KeyError:
                    agents.warn_of(agent, "{}, which has ended, cannot be observed; its last observation counts")
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
