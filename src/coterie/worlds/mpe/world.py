"""Two multi-particle environments that match mpe2 step by step: simple_spread and simple_tag.

In simple_spread agents cover landmarks together without collisions. In simple_tag slower adversaries chase faster good
agents between obstacles. Episodes end by the time limit only. mpe2's curricula, partial observations and early ends are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.settings import Settings
from coterie.core.skills import PlanCodec
from coterie.core.splitmix import seed_copies
from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, State, TimeStep
from coterie.core.validation import at_least, fits_in_memory, whole, within
from coterie.core.world import Sign, World, rebuild
from coterie.worlds.actions import first_outside
from coterie.worlds.assignments import goal_names
from coterie.worlds.mpe import kernels, render


@dataclass(frozen=True)
class SpreadSettings(Settings):
    """Settings of simple_spread."""

    num_agents: int = 3  # agent_0, agent_1, …; also the number of landmarks
    local_ratio: float = 0.5  # weight of an agent's own collisions; the team's distances have weight 1 − local_ratio
    max_steps: int = 25  # steps until an episode is truncated
    continuous_actions: bool = False  # five numbers in [0, 1] instead of one of five discrete actions

    def __post_init__(self) -> None:
        for name in ("num_agents", "max_steps"):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), 1)
        within("local_ratio", self.local_ratio, 0, 1)


@dataclass(frozen=True)
class TagSettings(Settings):
    """Settings of simple_tag."""

    num_good: int = 1  # agent_0, agent_1, …: fast, small, penalised for being caught and for leaving the square
    num_adversaries: int = 3  # adversary_0, adversary_1, …: slow, all rewarded for every catch
    num_obstacles: int = 2  # round landmarks that block agents
    max_steps: int = 25  # steps until an episode is truncated
    continuous_actions: bool = False  # five numbers in [0, 1] instead of one of five discrete actions

    def __post_init__(self) -> None:
        for name, low in (("num_good", 1), ("num_adversaries", 1), ("num_obstacles", 0), ("max_steps", 1)):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), low)


class _ParticleWorld(World):
    """The common part of both worlds: everything except sizes, spaces and experts.

    Discrete actions are 0 rest, 1 left, 2 right, 3 down, 4 up. Continuous actions are five numbers in that order; the
    first does nothing and opposite ones are subtracted.
    """

    simultaneous = True
    draws_final = True

    settings: SpreadSettings | TagSettings

    def __init__(self, rules: kernels.Rules, agent_types: Mapping[str, AgentType], num_envs: int) -> None:
        at_least("num_envs", num_envs, 1)
        self.num_envs, self.agent_types, self._rules = num_envs, agent_types, rules
        agents = len(rules.strength)
        landmarks = len(rules.size) - agents
        self.particles = _empty_state(num_envs, agents, landmarks)  # the full state
        self._final = _empty_state(num_envs, agents, landmarks)  # the end of each copy's latest episode
        self._force = np.zeros((num_envs, agents, 2))
        self._columns: dict[str, slice] = {}  # of each agent type among all agents
        for name, agent_type in agent_types.items():
            first = 0 if name == "adversary" else rules.adversaries
            self._columns[name] = slice(first, first + len(agent_type.agents))
        self._continuous = any(isinstance(agent_type.action, Box) for agent_type in agent_types.values())
        self._action = (
            np.zeros((num_envs, agents, 5), np.float32) if self._continuous else np.zeros((num_envs, agents), np.int64)
        )
        width = max(
            agent_type.observation.shape[0]
            for agent_type in agent_types.values()
            if isinstance(agent_type.observation, Box)
        )
        self._out = kernels.StepOutput(
            observation=np.zeros((num_envs, agents, width), np.float32),
            final_observation=np.zeros((num_envs, agents, width), np.float32),
            reward=np.zeros((num_envs, agents), np.float32),
            truncated=np.zeros((num_envs, agents), np.bool_),
            ended=np.zeros(num_envs, np.bool_),
            success=np.zeros(num_envs, np.bool_),
        )
        timestep = {name: self._as_agent_step(name) for name in agent_types}
        self._timestep = TimeStep(timestep, self._out.ended, self._out.success)
        self.reset(0)  # a new world is valid before its first reset

    def _as_agent_step(self, name: str) -> AgentStep:
        """Views of one agent type's part of the output arrays; a step overwrites the arrays in place."""
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
        """Reset every copy; copy i depends on (seed, i) only."""
        seed_copies(self.particles.random, seed, "mpe")
        kernels.start_episode.over(self.num_envs, self.particles, self._rules)
        return self._observe_only()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Move all agents at the same time; an action out of range raises ValueError and changes nothing."""
        for name in self.agent_types:
            given = np.asarray(actions[name])
            chosen = self._action[:, self._columns[name]]
            if given.shape != chosen.shape or given.dtype.kind not in ("iuf" if self._continuous else "iu"):
                what = "numbers" if self._continuous else "integers"
                got = f"{given.dtype} {given.shape}"
                raise ValueError(f"actions of '{name}' must be {what} of shape {chosen.shape}, got {got}")
            chosen[:] = given
        illegal = first_outside(self._action, 0, 1 if self._continuous else 4)
        if illegal >= 0:
            self._refuse(illegal, actions)
        write = kernels.forces_from_continuous if self._continuous else kernels.forces_from_discrete
        write.over(self.num_envs, self._action, self._rules.strength, self._force)
        kernels.step.over(self.num_envs, self.particles, self._final, self._rules, self._force, self._out)
        return self._timestep

    def _refuse(self, illegal: int, actions: Mapping[str, Array]) -> None:
        """Raise ValueError for the action at a flat index."""
        n, a = (int(i) for i in np.unravel_index(illegal, self._action.shape)[:2])
        name, columns = next((name, at) for name, at in self._columns.items() if at.start <= a < at.stop)
        agent_type, a = self.agent_types[name], a - columns.start
        chosen = np.asarray(actions[name])[n, a].tolist()
        raise ValueError(f"{agent_type.agents[a]} of copy {n} chose {chosen}, outside {agent_type.action}")

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all positions, velocities and random states."""
        return {name: array.copy() for name, array in self.particles._asdict().items()}

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        for name, array in self.particles._asdict().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self.particles._asdict().items():
            array[...] = state[name]
        return self._observe_only()

    def _observe_only(self) -> TimeStep:
        """The time step of the present state, without rewards and ends."""
        out = self._out
        for array in (out.reward, out.truncated, out.ended, out.success):
            array[...] = 0
        kernels.observe.over(self.num_envs, self.particles, self._rules, out.observation)
        return self._timestep

    def _as_actions(self, name: str, desired: Array) -> Array:
        """The actions of one agent type that are nearest to the forces `[N, A, 2]` its expert desires."""
        if isinstance(self.agent_types[name].action, Box):
            push = np.clip(desired[:, self._columns[name]], -1, 1)
            actions = np.zeros((*push.shape[:2], 5), np.float32)
            actions[..., [1, 3]] = np.maximum(-push, 0)
            actions[..., [2, 4]] = np.maximum(push, 0)
            return actions
        x, y = np.moveaxis(desired[:, self._columns[name]], -1, 0)
        along, across = np.where(np.abs(x) >= np.abs(y), x, y), np.where(np.abs(x) >= np.abs(y), 1, 3)
        return np.where(np.abs(along) > 0.5, across + (along > 0), 0)

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy now, or of the end of its latest finished episode."""
        return render.frame(self._final if final else self.particles, self._rules, copy)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return render.ansi(self._final if final else self.particles, self._rules, copy)

    def legend(self) -> tuple[Sign, ...]:
        """The signs of agents and landmarks."""
        return render.legend(tuple(a for spaces in self.agent_types.values() for a in spaces.agents), self._rules)


def _demand_memory(named: str, agents: int, landmarks: int, num_envs: int, settings: str) -> None:
    """Raise unless the observations, which hold all agents and landmarks, fit into memory."""
    width = 2 * (agents + landmarks) + 4
    fits_in_memory(
        f"{named} in {num_envs} environments",
        agents * (150 + 8 * num_envs * width),  # two arrays: of the present step, and of the latest episode's last
        f"lower world.{settings} or train.num_envs",
    )


class Spread(_ParticleWorld):
    """N copies of simple_spread. An episode succeeds if at its end an agent covers the centre of each landmark."""

    settings: SpreadSettings

    def __init__(self, settings: SpreadSettings, num_envs: int) -> None:
        self.settings = settings
        agents = settings.num_agents
        _demand_memory(f"num_agents={agents}", agents, agents, num_envs, "num_agents")
        rules = kernels.Rules(
            tag=False,
            adversaries=0,
            max_steps=settings.max_steps,
            local_ratio=float(settings.local_ratio),
            landmark_range=1.0,
            size=np.array([0.15] * agents + [0.05] * agents),
            strength=np.full(agents, 5.0),
            top_speed=np.full(agents, np.inf),
        )
        # Velocity, position, landmarks, other agents, and two message entries per other agent, always 0.
        agent_type = _agent_type("agent", agents, 4 + 2 * agents + 4 * (agents - 1), settings.continuous_actions)
        super().__init__(rules, {"agent": agent_type}, num_envs)

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the particle worlds."""
        from coterie.worlds.mpe.text import MpeText

        return MpeText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Go to the landmarks, assigned greedily by distance; deterministic."""
        desired = np.zeros_like(self._force)
        taken = np.zeros((self.num_envs, 2, self.settings.num_agents), np.bool_)
        kernels.cover.over(self.num_envs, self.particles, self._rules, taken, desired)
        return self._as_actions(agent_type, desired)

    def skills(self, agent_type: str) -> tuple[str, ...]:
        """One skill for each landmark, named by a colour: go there and rest."""
        if self.settings.continuous_actions:
            raise ValueError("skills have probabilities of discrete actions; set world.continuous_actions=false")
        return goal_names(self.settings.num_agents)

    def skill_actions(self, agent_type: str) -> Array:
        """The ways to every landmark, `[N, A, L, 5]`, one action each."""
        agents = self.settings.num_agents
        actions = np.zeros((self.num_envs, agents, agents, 5), np.float32)
        kernels.ways.over(self.num_envs, self.particles, self._rules, np.empty_like(self._force), actions)
        return actions

    def best_skills(self, agent_type: str) -> Array:
        """Each agent's landmark in the assignment of the least sum of distances, `[N, A]`."""
        goals = np.zeros((self.num_envs, self.settings.num_agents), np.int64)
        kernels.assign(self.particles, goals)
        return goals

    def plan_codec(self, agent_type: str) -> PlanCodec:
        """The plan codec of simple_spread."""
        from coterie.worlds.mpe.plans import SpreadPlans

        return SpreadPlans(self, agent_type)


class Tag(_ParticleWorld):
    """N copies of simple_tag. An episode succeeds (for the adversaries) if a good agent was caught at least once."""

    def __init__(self, settings: TagSettings, num_envs: int) -> None:
        self.settings = settings
        adversaries, good, obstacles = settings.num_adversaries, settings.num_good, settings.num_obstacles
        named = f"num_adversaries={adversaries}, num_good={good} and num_obstacles={obstacles}"
        counts = "num_adversaries, num_good, num_obstacles"
        _demand_memory(named, adversaries + good, obstacles, num_envs, counts)
        rules = kernels.Rules(
            tag=True,
            adversaries=adversaries,
            max_steps=settings.max_steps,
            local_ratio=0.0,
            landmark_range=0.9,
            size=np.array([0.075] * adversaries + [0.05] * good + [0.2] * obstacles),
            strength=np.array([3.0] * adversaries + [4.0] * good),
            top_speed=np.array([1.0] * adversaries + [1.3] * good),
        )
        # Velocity, position, obstacles, other agents, and the velocities of other good agents.
        width, continuous = 4 + 2 * obstacles + 2 * (adversaries + good - 1), settings.continuous_actions
        agent_types = {
            "adversary": _agent_type("adversary", adversaries, width + 2 * good, continuous),
            "agent": _agent_type("agent", good, width + 2 * (good - 1), continuous),
        }
        super().__init__(rules, agent_types, num_envs)

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the particle worlds."""
        from coterie.worlds.mpe.text import MpeText

        return MpeText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Adversaries chase the nearest good agent, good agents flee from adversaries; deterministic."""
        desired = np.zeros_like(self._force)
        if agent_type == "adversary":
            kernels.chase.over(self.num_envs, self.particles, self._rules, desired)
        else:
            continuous = self.settings.continuous_actions
            kernels.flee.over(self.num_envs, self.particles, self._rules, continuous, desired)
        return self._as_actions(agent_type, desired)


def _agent_type(name: str, agents: int, width: int, continuous: bool) -> AgentType:
    names = tuple(f"{name}_{i}" for i in range(agents))
    return AgentType(names, Box((width,), -np.inf, np.inf), Box((5,), 0.0, 1.0) if continuous else Discrete(5))


def _empty_state(num_envs: int, agents: int, landmarks: int) -> kernels.ParticleState:
    return kernels.ParticleState(
        random=np.zeros(num_envs, np.uint64),
        time=np.zeros(num_envs, np.int32),
        position=np.zeros((num_envs, agents, 2)),
        velocity=np.zeros((num_envs, agents, 2)),
        landmarks=np.zeros((num_envs, landmarks, 2)),
        caught=np.zeros(num_envs, np.bool_),
    )
