"""Two worlds of round bodies in the plane, step by step those of mpe2: simple_spread and simple_tag.

Spread: agents cover landmarks together without bumping into each other. Tag: slower adversaries hunt faster good
agents between obstacles. Episodes end by time alone. What happens in a step is in `mpe_kernels.py`; mpe2's
curricula, partial views and early ends are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, State, TimeStep
from coterie.core.validation import at_least, whole, within
from coterie.core.world import rebuild
from coterie.worlds.mpe import kernels
from coterie.worlds.mpe import render as draw
from coterie.worlds.random import seed_copies


@dataclass(frozen=True)
class SpreadSettings:
    """How many cover how many landmarks, and what they are charged for."""

    num_agents: int = 3  # agent_0, agent_1, …; there are as many landmarks
    local_ratio: float = 0.5  # weight of each agent's own collisions; the team's distances have the rest
    max_steps: int = 25  # after which an episode is truncated
    continuous_actions: bool = False  # five numbers in [0, 1] instead of one of five choices

    def __post_init__(self) -> None:
        for name in ("num_agents", "max_steps"):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), 1)
        within("local_ratio", self.local_ratio, 0, 1)


@dataclass(frozen=True)
class TagSettings:
    """How many hunt how many, and what stands in their way."""

    num_good: int = 1  # agent_0, agent_1, …: fast, small, charged for being caught and for leaving
    num_adversaries: int = 3  # adversary_0, adversary_1, …: slow, paid together for every catch
    num_obstacles: int = 2  # round landmarks nobody can pass
    max_steps: int = 25  # after which an episode is truncated
    continuous_actions: bool = False  # five numbers in [0, 1] instead of one of five choices

    def __post_init__(self) -> None:
        for name, low in (("num_good", 1), ("num_adversaries", 1), ("num_obstacles", 0), ("max_steps", 1)):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), low)


class _Particles:
    """What both worlds share: all of it but sizes, spaces and the reference players.

    Actions are 0 rest, 1 left, 2 right, 3 down, 4 up, or five numbers in that order, of which the first does nothing
    and opposite ones are subtracted.
    """

    simultaneous = True
    state_size = 0
    draws_final = True

    settings: SpreadSettings | TagSettings

    def __init__(self, rules: kernels.Rules, agent_types: Mapping[str, AgentType], num_envs: int) -> None:
        at_least("num_envs", num_envs, 1)
        self.num_envs, self.agent_types, self._rules = num_envs, agent_types, rules
        agents = len(rules.strength)
        landmarks = len(rules.size) - agents
        self.bodies = _empty_bodies(num_envs, agents, landmarks)  # all that decides the future
        self._last = _empty_bodies(num_envs, agents, landmarks)  # how each copy's latest episode ended
        self._force = np.zeros((num_envs, agents, 2))
        self._columns: dict[str, slice] = {}  # where a kind's agents are among all
        for name, agent_type in agent_types.items():
            first = 0 if name == "adversary" else rules.adversaries
            self._columns[name] = slice(first, first + len(agent_type.agents))
        width = max(
            agent_type.observation.shape[0]
            for agent_type in agent_types.values()
            if isinstance(agent_type.observation, Box)
        )
        self._out = kernels.Outcome(
            observation=np.zeros((num_envs, agents, width), np.float32),
            final_observation=np.zeros((num_envs, agents, width), np.float32),
            reward=np.zeros((num_envs, agents), np.float32),
            truncated=np.zeros((num_envs, agents), np.bool_),
            ended=np.zeros(num_envs, np.bool_),
            success=np.zeros(num_envs, np.bool_),
        )
        timestep = {name: self._as_agent_step(name) for name in agent_types}
        self._timestep = TimeStep(timestep, self._out.ended, self._out.success)
        self.reset(0)  # so that a world just built is already a valid one

    def _as_agent_step(self, name: str) -> AgentStep:
        """One kind's share of the buffers, which are rewritten at every step, never replaced."""
        out, columns, space = self._out, self._columns[name], self.agent_types[name].observation
        assert isinstance(space, Box)
        reward = out.reward[:, columns]
        return AgentStep(
            observation=out.observation[:, columns, : space.shape[0]],
            acting=np.ones(reward.shape, np.bool_),
            reward=reward,
            terminated=np.zeros(reward.shape, np.bool_),
            truncated=out.truncated[:, columns],
            final_observation=out.final_observation[:, columns, : space.shape[0]],
        )

    def reset(self, seed: int) -> TimeStep:
        """Start every copy anew; copy i depends on (seed, i) only."""
        seed_copies(self.bodies.random, seed, "mpe")
        kernels.spawn(self.bodies, self._rules)
        return self._calm()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Move everybody at once; an action out of range is a ValueError and changes nothing."""
        for name, agent_type in self.agent_types.items():
            self._push(name, agent_type, np.asarray(actions[name]))
        kernels.step(self.bodies, self._last, self._rules, self._force, self._out)
        return self._timestep

    def _push(self, name: str, agent_type: AgentType, given: Array) -> None:
        """Turn a kind's actions into forces."""
        continuous = isinstance(agent_type.action, Box)
        rows = (self.num_envs, len(agent_type.agents), *((5,) if continuous else ()))
        if given.shape != rows or given.dtype.kind not in ("iuf" if continuous else "iu"):
            what = "numbers" if continuous else "integers"
            raise ValueError(f"actions of '{name}' must be {what} of shape {rows}, got {given.dtype} {given.shape}")
        chosen = np.ascontiguousarray(given, dtype=np.float32 if continuous else np.int64)
        push = kernels.push_continuous if continuous else kernels.push_discrete
        wrong = push(chosen, self._rules.strength, self._columns[name].start, self._force)
        if wrong >= 0:
            n, a = divmod(wrong, len(agent_type.agents))
            raise ValueError(
                f"{agent_type.agents[a]} of copy {n} chose {given[n, a].tolist()}, outside {agent_type.action}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all places, velocities and random states."""
        return {name: array.copy() for name, array in self.bodies._asdict().items()}

    def load(self, state: State) -> TimeStep:
        """Return to a saved moment."""
        for name, array in self.bodies._asdict().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self.bodies._asdict().items():
            array[...] = state[name]
        return self._calm()

    def _calm(self) -> TimeStep:
        """Say what agents see, with no reward and no end."""
        out = self._out
        for array in (out.reward, out.truncated, out.ended, out.success):
            array[...] = 0
        kernels.observe(self.bodies, self._rules, out.observation)
        return self._timestep

    def _as_actions(self, name: str, wish: Array) -> Array:
        """The actions nearest to the pushes `[N, A, 2]` that a kind's reference player wishes for."""
        if isinstance(self.agent_types[name].action, Box):
            push = np.clip(wish[:, self._columns[name]], -1, 1)
            actions = np.zeros((*push.shape[:2], 5), np.float32)
            actions[..., [1, 3]] = np.maximum(-push, 0)
            actions[..., [2, 4]] = np.maximum(push, 0)
            return actions
        x, y = np.moveaxis(wish[:, self._columns[name]], -1, 0)
        along, across = np.where(np.abs(x) >= np.abs(y), x, y), np.where(np.abs(x) >= np.abs(y), 1, 3)
        return np.where(np.abs(along) > 0.5, across + (along > 0), 0)

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy now, or of the end of its latest finished episode."""
        return draw.frame(self._last if final else self.bodies, self._rules, copy)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return draw.ansi(self._last if final else self.bodies, self._rules, copy)


class Spread(_Particles):
    """N copies of simple_spread. An episode succeeds when at its end an agent's disc lies on each landmark's middle."""

    def __init__(self, settings: SpreadSettings, num_envs: int) -> None:
        self.settings = settings
        agents = settings.num_agents
        rules = kernels.Rules(
            tag=False,
            adversaries=0,
            max_steps=settings.max_steps,
            local_ratio=float(settings.local_ratio),
            spawn=1.0,
            size=np.array([0.15] * agents + [0.05] * agents),
            strength=np.full(agents, 5.0),
            top_speed=np.full(agents, np.inf),
        )
        # Velocity, position, landmarks, the others, and two numbers of each other's messages, always 0.
        agent_type = _kind("agent", agents, 4 + 2 * agents + 4 * (agents - 1), settings.continuous_actions)
        super().__init__(rules, {"agent": agent_type}, num_envs)

    def text_codec(self, agent_type: str) -> TextCodec:
        """The particle world in words."""
        from coterie.worlds.mpe.text import MpeText

        return MpeText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Go to the landmarks, shared out greedily by distance; nothing is left to chance."""
        wish = np.zeros_like(self._force)
        kernels.cover(self.bodies, self._rules, wish)
        return self._as_actions(agent_type, wish)


class Tag(_Particles):
    """N copies of simple_tag. An episode succeeds, for the adversaries, when a good agent was caught at least once."""

    def __init__(self, settings: TagSettings, num_envs: int) -> None:
        self.settings = settings
        hunters, good, obstacles = settings.num_adversaries, settings.num_good, settings.num_obstacles
        rules = kernels.Rules(
            tag=True,
            adversaries=hunters,
            max_steps=settings.max_steps,
            local_ratio=0.0,
            spawn=0.9,
            size=np.array([0.075] * hunters + [0.05] * good + [0.2] * obstacles),
            strength=np.array([3.0] * hunters + [4.0] * good),
            top_speed=np.array([1.0] * hunters + [1.3] * good),
        )
        # Velocity, position, obstacles, the others, and the velocities of other good agents.
        width, continuous = 4 + 2 * obstacles + 2 * (hunters + good - 1), settings.continuous_actions
        agent_types = {
            "adversary": _kind("adversary", hunters, width + 2 * good, continuous),
            "agent": _kind("agent", good, width + 2 * (good - 1), continuous),
        }
        super().__init__(rules, agent_types, num_envs)

    def text_codec(self, agent_type: str) -> TextCodec:
        """The particle world in words."""
        from coterie.worlds.mpe.text import MpeText

        return MpeText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Adversaries run to the nearest good agent, good agents away from adversaries; nothing is left to chance."""
        wish = np.zeros_like(self._force)
        if agent_type == "adversary":
            kernels.chase(self.bodies, self._rules, wish)
        else:
            kernels.flee(self.bodies, self._rules, self.settings.continuous_actions, wish)
        return self._as_actions(agent_type, wish)


def _kind(name: str, agents: int, width: int, continuous: bool) -> AgentType:
    names = tuple(f"{name}_{i}" for i in range(agents))
    return AgentType(names, Box((width,), -np.inf, np.inf), Box((5,), 0.0, 1.0) if continuous else Discrete(5))


def _empty_bodies(num_envs: int, agents: int, landmarks: int) -> kernels.Bodies:
    return kernels.Bodies(
        random=np.zeros(num_envs, np.uint64),
        time=np.zeros(num_envs, np.int32),
        position=np.zeros((num_envs, agents, 2)),
        velocity=np.zeros((num_envs, agents, 2)),
        landmarks=np.zeros((num_envs, landmarks, 2)),
        caught=np.zeros(num_envs, np.bool_),
    )
