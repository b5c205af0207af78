"""Any PettingZoo environment by name, parallel or agent by agent, and MPE's (`mpe2`) as a special case.

Parallel environments become simultaneous worlds, AEC environments worlds in which one agent acts at a time.
Agents of equal spaces form a kind. Rewards are read after every step and handed on at once.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from coterie.core.types import AgentType, Array, CoterieError, UnknownName, map_tree
from coterie.worlds.adapters.batch import AgentTypeArrays, EnvSpec, Mismatch, Row, as_flag, as_reward
from coterie.worlds.adapters.external import (
    ExternalSettings,
    ExternalWorld,
    Hosted,
    import_external,
    import_own,
    newest,
)


@dataclass(frozen=True)
class PettingzooSettings(ExternalSettings):
    """`classic/tictactoe_v3`, or one's own `package.module` or `package.module:maker`."""

    api: Literal["auto", "parallel", "aec"] = "auto"  # which of the two to play; auto: parallel where it exists
    late: bool = False  # agents may appear late although all are there in the first episode
    channels: Literal["auto", "first", "last"] = "auto"  # where pictures keep their channels


@dataclass(frozen=True)
class MpeSettings(PettingzooSettings):
    """`simple_spread`, `simple_tag` …; the version may be left out."""


class PettingzooWorld(Hosted):
    """N copies of a PettingZoo environment."""

    def __init__(self, settings: PettingzooSettings, num_envs: int) -> None:
        make = functools.partial(make_pettingzoo, settings)
        super().__init__(ExternalWorld(f"pettingzoo/{settings.id}", settings, make, num_envs))


class MpeWorld(Hosted):
    """N copies of an environment of mpe2."""

    def __init__(self, settings: MpeSettings, num_envs: int) -> None:
        super().__init__(ExternalWorld(f"mpe/{settings.id}", settings, functools.partial(make_mpe, settings), num_envs))


# Making -------------------------------------------------------------------------------------------------


def make_pettingzoo(settings: PettingzooSettings) -> ParallelEnvironment | TurnBasedEnvironment:
    """One copy of an environment."""
    import_external("pettingzoo", "'coterie[worlds]'")
    family, slash, name = settings.id.partition("/")
    if not slash:
        module, _, maker = settings.id.partition(":")
        return _build(import_own(module, f"pettingzoo/{settings.id}"), maker, settings)
    try:
        package = importlib.import_module(f"pettingzoo.{family}")
    except ModuleNotFoundError:
        raise UnknownName(f"pettingzoo/{settings.id}: PettingZoo has no family '{family}'") from None
    return _build(_find(package, name, "pettingzoo", f"{family}/", f"'pettingzoo[{family}]'"), "", settings)


def make_mpe(settings: MpeSettings) -> ParallelEnvironment | TurnBasedEnvironment:
    """One copy of an environment of mpe2."""
    return _build(_find(import_external("mpe2", "mpe2"), settings.id, "mpe", "", "mpe2"), "", settings)


def _find(package: Any, name: str, family: str, prefix: str, install: str) -> Any:
    """A package's module of that name, or of its newest version."""
    known = [found.name for found in pkgutil.iter_modules(package.__path__) if re.search(r"_v\d+$", found.name)]
    chosen = newest(name, known)
    if chosen is None:
        other = newest(re.sub(r"_v\d+$", "", name), known)  # the same in another version
        close = [other] if other else difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"did you mean '{family}/{prefix}{close[0]}'?" if close else f"there are {', '.join(known)}"
        raise UnknownName(f"{family}/{prefix}{name}: no such environment; {hint}")
    return import_external(f"{package.__name__}.{chosen}", install)


def _build(module: Any, maker: str, settings: PettingzooSettings) -> ParallelEnvironment | TurnBasedEnvironment:
    from pettingzoo import AECEnv, ParallelEnv

    has = {"parallel": "parallel_env", "aec": "env"}
    wanted = [has[settings.api]] if settings.api != "auto" else [*has.values()]
    names = [maker] if maker else [name for name in wanted if name in vars(module)]
    if not names:
        raise CoterieError(f"{module.__name__}: expected {' or '.join(wanted)} in it, got neither")
    options = settings.options | ({"render_mode": "rgb_array"} if settings.render else {})
    environment = getattr(module, names[0])(**options)
    if isinstance(environment, ParallelEnv):
        return ParallelEnvironment(environment, settings)
    if isinstance(environment, AECEnv):
        return TurnBasedEnvironment(environment, settings)
    raise CoterieError(f"{module.__name__}: expected a ParallelEnv or an AECEnv, got {type(environment).__name__}")


# Who sits at the table ----------------------------------------------------------------------------------


class Seat(NamedTuple):
    """One agent's place: how to write what it sees and read what it does."""

    arrays: AgentTypeArrays
    column: int
    write: Callable[[Any], None]
    action: Callable[[], Any]


class Table:
    """The agents of an environment, in kinds, and their rows."""

    def __init__(self, environment: Any, settings: PettingzooSettings, infos: Mapping[Any, Any]) -> None:
        from coterie.worlds.adapters import spaces

        self.spaces, self.environment = spaces, environment
        self.limit = settings.max_episode_steps or 2**62
        self.agents = list(environment.possible_agents)
        self.readings = {
            a: spaces.read_observation(environment.observation_space(a), settings.channels) for a in self.agents
        }
        self.told = any(isinstance(info, Mapping) and "action_mask" in info for info in infos.values())
        masks = {a: self.told or self.readings[a].mask is not None for a in self.agents}
        groups: list[tuple[Any, list[Any]]] = []
        for agent in self.agents:
            key = (self.readings[agent].space, spaces.read_action(environment.action_space(agent)), masks[agent])
            same = next((members for other, members in groups if other == key), None)
            if same is None:
                groups.append((key, [agent]))
            else:
                same.append(agent)
        self.agent_types: dict[str, AgentType] = {}
        self.masked: list[str] = []
        self.places: dict[Any, tuple[str, int]] = {}
        for (observation, action, masked), members in groups:
            name = kind_name([str(agent) for agent in members], self.agent_types)
            self.agent_types[name] = AgentType(tuple(map(str, members)), observation, action)
            self.places |= {agent: (name, column) for column, agent in enumerate(members)}
            self.masked += [name] * masked
        self.notes = tuple(sorted({note for reading in self.readings.values() for note in reading.notes}))

    def env_spec(self, simultaneous: bool) -> EnvSpec:
        """What the world needs to know."""
        return EnvSpec(self.agent_types, simultaneous, tuple(self.masked), notes=self.notes)

    def sit(self, row: Row) -> None:
        """Write there from now on."""
        self.rows = list(row.values())
        self.seats: dict[Any, Seat] = {}
        for agent, (agent_type, column) in self.places.items():
            arrays, space = row[agent_type], self.environment.action_space(agent)
            write = self.spaces.write_into(self.readings[agent], arrays.observation, column, arrays.mask)
            self.seats[agent] = Seat(arrays, column, write, self.spaces.read_from(space, arrays.action, column))

    def clear(self) -> None:
        """A new episode: nobody has been seen yet. What the last one's final step brought stays to be told."""
        self.clock = 0
        for row in self.rows:
            map_tree(_zero, row.observation)
            row.gone[:] = False
            self._idle(row)

    def rest(self) -> None:
        """Nothing earned, nobody ended, nobody's turn."""
        for row in self.rows:
            row.reward[:], row.terminated[:], row.truncated[:] = 0, False, False
            self._idle(row)

    def _idle(self, row: AgentTypeArrays) -> None:
        row.acting[:] = False
        if row.mask is not None:
            row.mask[:] = True

    def see(self, agent: Any, observation: Any, info: Any, acting: bool) -> None:
        """Write what one agent sees and, if it is to act, what it may do."""
        seat = self.seats[agent]
        seat.write(observation)
        mask = seat.arrays.mask
        if mask is not None:
            if not acting:
                mask[seat.column] = True  # an idle agent's row is all legal, so that a softmax over it is finite
            elif self.told and isinstance(info, Mapping) and "action_mask" in info:
                self.spaces.write_mask(info["action_mask"], mask[seat.column])
            if not mask[seat.column].any():
                raise Mismatch(f"a legal action in the action_mask of {agent!r}", "none")
        seat.arrays.acting[seat.column] = acting

    def gone(self, agent: Any) -> bool:
        """Whether the agent's episode has ended."""
        seat = self.seats[agent]
        return bool(seat.arrays.gone[seat.column])

    def pay(self, agent: Any, reward: Any) -> None:
        """Add to what an agent earned in this step."""
        seat = self.seats[agent]
        seat.arrays.reward[seat.column] += as_reward(reward)

    def end(self, agent: Any, terminated: Any, truncated: Any) -> bool:
        """Note an agent's end, if it is one; termination outweighs truncation."""
        terminated = as_flag(f"terminated of {agent!r}", terminated)
        truncated = as_flag(f"truncated of {agent!r}", truncated)
        if not (terminated or truncated):
            return False
        arrays, column = self.seats[agent].arrays, self.seats[agent].column
        arrays.terminated[column], arrays.truncated[column] = terminated, not terminated
        arrays.gone[column], arrays.acting[column] = True, False
        return True

    def finish(self) -> bool:
        """Count the step; is the episode over? At the end nobody stays, also those who never appeared."""
        self.clock += 1
        acting = any(row.acting.any() for row in self.rows)
        if acting and self.clock < self.limit:
            return False
        cut = acting or any(row.truncated.any() for row in self.rows)
        for row in self.rows:
            left = ~row.gone
            (row.truncated if cut else row.terminated)[left] = True
            row.acting[:] = False
        return True

    def entry(self, what: str, values: Any, agent: Any) -> Any:
        """One agent's value, or a clear error."""
        try:
            return values[agent]
        except (KeyError, TypeError):
            got = [*values] if isinstance(values, Mapping) else type(values).__name__
            raise Mismatch(f"{what} with an entry for {agent!r}", got) from None


def kind_name(agents: list[str], taken: Iterable[str]) -> str:
    """What the agents' names have in common (`adversary_0`, `adversary_1` are adversaries), made unique."""
    stems = list(dict.fromkeys(re.sub(r"[_-]?\d+$", "", agent) or "agent" for agent in agents))
    name, taken = "_".join(stems), set(taken)
    return name if name not in taken else next(f"{name}_{i}" for i in range(2, 99) if f"{name}_{i}" not in taken)


def _zero(array: Array) -> None:
    array[...] = 0


def _require_agents(environment: Any) -> None:
    """All agents must be known before the first episode."""
    try:
        agents = list(environment.possible_agents)
    except (AttributeError, TypeError):
        agents = []
    if not agents:
        raise CoterieError(
            f"{environment}: expected possible_agents to name all agents that may ever appear, got none; "
            "a table needs to know its places"
        )


# The two kinds of environment ---------------------------------------------------------------------------


class ParallelEnvironment:
    """One copy of a parallel environment: all who are present act together."""

    def __init__(self, environment: Any, settings: PettingzooSettings) -> None:
        _require_agents(environment)
        self.environment = environment
        infos = environment.reset(seed=0)[1]
        self.table = Table(environment, settings, infos)
        self.late = settings.late or set(environment.agents) != set(self.table.agents)
        self.env_spec = self.table.env_spec(simultaneous=not self.late)

    def sit(self, row: Row) -> None:
        """Write there from now on."""
        self.table.sit(row)

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        observations, infos = self.environment.reset(seed=seed)
        table = self.table
        table.clear()
        self.present = list(self.environment.agents)
        if not self.late and set(self.present) != set(table.agents):
            raise Mismatch(
                f"all of {table.agents} from the start (if agents may appear late, set world.late: true)",
                self.present,
            )
        for agent in self.present:
            table.see(agent, table.entry("observations", observations, agent), infos.get(agent), acting=True)

    def step(self) -> bool:
        """Take one step of everybody present."""
        table, environment = self.table, self.environment
        told = environment.step({agent: table.seats[agent].action() for agent in self.present})
        if not (isinstance(told, tuple) and len(told) == 5):
            raise Mismatch("step to return five dicts", type(told).__name__)
        observations, rewards, terminations, truncations, infos = told
        table.rest()
        now = set(environment.agents)
        for agent in self.present:
            table.pay(agent, table.entry("rewards", rewards, agent))
            table.see(agent, table.entry("observations", observations, agent), None, acting=False)
            flags = [table.entry(n, v, agent) for n, v in (("terminated", terminations), ("truncated", truncations))]
            if not table.end(agent, *flags) and agent not in now:
                raise Mismatch(f"{agent!r} to be terminated or truncated before it leaves", "neither")
        known = [agent for agent in self.present if not table.gone(agent)]
        new = [agent for agent in environment.agents if agent not in self.present]
        self.present = known + new
        for agent in self.present:
            if agent not in table.seats or table.gone(agent):
                raise Mismatch("only agents that are possible and have not ended", repr(agent))
            table.see(agent, table.entry("observations", observations, agent), infos.get(agent), acting=True)
        return table.finish()

    def won(self) -> bool:
        """PettingZoo does not say."""
        return False

    def frame(self) -> Any:
        """The environment's picture."""
        return self.environment.render()

    def close(self) -> None:
        """Let go of the environment."""
        self.environment.close()


class TurnBasedEnvironment:
    """One copy of an AEC environment: one agent acts at a time."""

    def __init__(self, environment: Any, settings: PettingzooSettings) -> None:
        _require_agents(environment)
        self.environment = environment
        environment.reset(seed=0)
        self.table = Table(environment, settings, environment.infos)
        self.env_spec = self.table.env_spec(simultaneous=False)

    def sit(self, row: Row) -> None:
        """Write there from now on."""
        self.table.sit(row)

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self.environment.reset(seed=seed)
        self.table.clear()
        self._look()
        if self.table.gone(self.environment.agent_selection):
            raise Mismatch("an agent that can act after reset", "one that has ended")

    def step(self) -> bool:
        """Take the step of the agent whose turn it is."""
        table, environment = self.table, self.environment
        environment.step(table.seats[environment.agent_selection].action())
        table.rest()
        for agent, reward in environment.rewards.items():
            if not table.gone(agent):
                table.pay(agent, reward)
        for _ in range(len(table.agents) + 1):
            self._note_ends()
            if not environment.agents or not table.gone(environment.agent_selection):
                break
            environment.step(None)  # an agent that has ended takes its leave
        else:
            raise Mismatch("the turn to pass to an agent that still plays", environment.agent_selection)
        if environment.agents:
            self._look()
        return table.finish()

    def _note_ends(self) -> None:
        table, environment = self.table, self.environment
        for agent in environment.agents:
            if not table.gone(agent) and (environment.terminations[agent] or environment.truncations[agent]):
                table.see(agent, environment.observe(agent), None, acting=False)
                table.end(agent, environment.terminations[agent], environment.truncations[agent])

    def _look(self) -> None:
        """Write what all who still play see; one of them acts."""
        table, environment = self.table, self.environment
        for agent in environment.agents:
            if agent not in table.seats:
                raise Mismatch("only agents that are possible", repr(agent))
            if not table.gone(agent):
                acts = agent == environment.agent_selection
                table.see(agent, environment.observe(agent), environment.infos.get(agent), acting=acts)

    def won(self) -> bool:
        """PettingZoo does not say."""
        return False

    def frame(self) -> Any:
        """The environment's picture."""
        return self.environment.render()

    def close(self) -> None:
        """Let go of the environment."""
        self.environment.close()
