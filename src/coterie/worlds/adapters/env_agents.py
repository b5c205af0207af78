"""The agents of one PettingZoo environment: their names, their agent types, and their rows in the arrays."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from coterie.core.trees import map_tree
from coterie.core.types import AgentType, Array
from coterie.worlds.adapters.batch import (
    AgentTypeArrays,
    EnvArrays,
    EnvSpec,
    Warn,
    as_bool,
    as_reward,
    has_own_limit,
    warn_once,
)
from coterie.worlds.adapters.external import ExternalSettings


class AgentSlot(NamedTuple):
    """One agent's column in the arrays, with functions that write its observation and read its action."""

    arrays: AgentTypeArrays
    column: int
    write_observation: Callable[[Any], None]
    read_action: Callable[[], Any]


class EnvAgents:
    """The agents of one environment: groups them into agent types, and writes their results into the arrays."""

    def __init__(self, env: Any, settings: ExternalSettings, name: str, channels: Any, info_masks: bool) -> None:
        from coterie.worlds.adapters import actions, frames, spaces  # import gymnasium

        self.spaces, self.actions, self.env = spaces, actions, env
        self.limit = settings.max_episode_steps or 2**62
        self.weights = settings.scalarize
        self.warn: Warn = functools.partial(warn_once, name)
        self.world_name = name
        self.names = list(env.possible_agents)
        self.public_names = public_names(self.names)
        seen = {a: env.observation_space(a) for a in self.names}
        self.frames: dict[Any, Any] = {}
        if settings.changes_frames:
            self.frames = {a: frames.Frames(space, settings, channels) for a, space in seen.items()}
            seen, channels = {a: found.space for a, found in self.frames.items()}, "first"
        self.layouts = {
            a: spaces.convert_observation_space(space, channels, text=settings.text) for a, space in seen.items()
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
        """The environment's declarations."""
        return EnvSpec(
            self.agent_types,
            simultaneous,
            tuple(self.masked),
            warnings=self.warnings,
            limited=self.limit < 2**62 or has_own_limit(self.env),
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
        for frames in self.frames.values():
            frames.clear()
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
        """Write one agent's observation and `acting` and, if it acts, its action mask; every call is a new frame."""
        slot = self.slots[agent]
        slot.write_observation(self.frames[agent].add(observation) if self.frames else observation)
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
            self.warn_of(agent, "a reward of {} after its end is dropped; pay it in the step in which the agent ends")

    def warn_of(self, agent: Any, message: str) -> None:
        """Log a warning about an agent, whose name takes the place of {}; other agents do not repeat it."""
        warn_once(self.world_name, message.format(repr(agent)) + " (not repeated for other agents)", message)

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
        name = plain = re.sub(r"\s*[\[\](){}*?,=:'\"/\\]+\s*", "_", str(agent)).strip("_") or "agent"
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
