"""Rollout buffers: one per group, filled step by step and returned as an Experience.

Decisions that are pending when a rollout ends become the first row of the next one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core.group import Actor, GroupSpec
from coterie.core.types import (
    AgentStep,
    Array,
    Decision,
    Experience,
    Finals,
    PendingTransitions,
    StateRows,
    TimeStep,
    Tree,
    View,
    action_dtype,
    action_shape,
    blank,
    map_tree,
)


class RolloutBuffer:
    """Collects the Experience of one group during one rollout."""

    def __init__(self, actor: Actor, num_envs: int, rows: int, first: AgentStep) -> None:
        group_spec = actor.group_spec
        shape = (rows, num_envs, len(group_spec.agents))
        self.group_spec = group_spec
        self.observation = map_tree(
            lambda a: blank((rows + 1, num_envs, len(group_spec.agents), *a.shape[2:]), a.dtype),
            first.observation,
        )
        space = group_spec.spaces.action
        self.action = blank((*shape, *action_shape(space)), action_dtype(space))
        self.log_prob = np.zeros(shape, np.float32)
        self.reward = np.zeros(shape, np.float32)
        self.active = np.zeros(shape, bool)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape, bool)
        self.shown = actor.room(shape, None if first.mask is None else first.mask.shape[-1])
        size = actor.policy.memory_size
        self.memory = np.zeros((rows + 1, *shape[1:], size), np.float32) if size else None
        self.trace: dict[str, Array] | None = None  # allocated by the first decision that has one
        self.opening_group_reward: Array | None = None
        self.finals: list[tuple[Array, Tree, Array | None]] = []

    def open(self, opening: PendingTransitions) -> None:
        """Start with the pending transitions of the last rollout."""
        map_tree(lambda into, a: into.__setitem__(0, a), self.observation, opening.observation)
        self.active[0], self.action[0] = opening.active, opening.action
        self.log_prob[0], self.reward[0] = opening.log_prob, opening.reward
        self.opening_group_reward = opening.group_reward
        self.shown.write(0, opening)
        if self.memory is not None:
            self.memory[0] = opening.memory
        self._trace(0, opening.trace)

    def decided(self, t: int, view: View, decision: Decision) -> None:
        """Store the view and the decision of row t."""
        map_tree(lambda into, a: into.__setitem__(t, a), self.observation, view.observation)
        self.active[t] = view.acting
        self.action[t] = decision.action
        if decision.log_prob is not None:
            self.log_prob[t] = decision.log_prob
        self.shown.write(t, view)
        if self.memory is not None:
            self.memory[t] = view.memory
        self._trace(t, decision.trace)

    def _trace(self, t: int, trace: dict[str, Array] | None) -> None:
        """Stack a decision's trace; rows without one stay blank."""
        if trace is None:
            return
        if self.trace is None:
            self.trace = {name: blank((len(self.active), *a.shape), a.dtype) for name, a in trace.items()}
        if trace.keys() != self.trace.keys():
            raise ValueError(f"a policy's trace must always have the same keys, got {sorted(trace)}")
        for name, array in trace.items():
            self.trace[name][t] = array

    def arrived(self, t: int, agent_step: AgentStep, cut: Array, memory: Array | None) -> None:
        """Store rewards and ends of row t; environments in `cut` were truncated and reset."""
        pick = picker(self.group_spec)
        self.reward[t] = pick(agent_step.reward)
        self.terminated[t] = pick(agent_step.terminated)
        self.truncated[t] = pick(agent_step.truncated)
        if len(cut):
            index = np.stack([np.full(len(cut), t), cut], axis=1)
            last = map_tree(lambda a: pick(a)[cut], agent_step.final_observation)
            self.finals.append((index, last, None if memory is None else memory[cut]))

    def finish(self, agent_step: AgentStep, memory: Array | None) -> Experience:
        """The Experience, closed at the present step."""
        pick = picker(self.group_spec)
        map_tree(lambda into, a: into.__setitem__(-1, pick(a)), self.observation, agent_step.observation)
        if self.memory is not None:
            self.memory[-1] = memory
        if self.finals:
            index = np.concatenate([i for i, _, _ in self.finals])
            final = map_tree(lambda *a: np.concatenate(a), *(o for _, o, _ in self.finals))
            held = None if memory is None else np.concatenate([m for _, _, m in self.finals if m is not None])
        else:
            index, final = np.zeros((0, 2), np.int64), map_tree(lambda a: a[0, :0], self.observation)
            held = None if self.memory is None else self.memory[0, :0]
        return Experience(
            self.observation,
            self.action,
            self.log_prob,
            self.reward,
            self.active,
            self.terminated,
            self.truncated,
            pick(agent_step.acting).copy(),
            Finals(index, final, held),
            memory=self.memory,
            trace=self.trace,
            opening_group_reward=self.opening_group_reward,
            **self.shown._asdict(),
        )


def picker(group_spec: GroupSpec) -> Any:
    """A function that selects a group's columns from an agent type's array `[N, A, …]`."""
    return (lambda a: a) if group_spec.whole else (lambda a: a[:, group_spec.columns])


class StateBuffer:
    """Collects the global state during a rollout."""

    def __init__(self, rows: int, first: Array) -> None:
        self.rows = np.zeros((rows + 1, *first.shape), np.float32)
        self.finals: list[Array] = []

    def seen(self, t: int, state: Array) -> None:
        """Store the state of row t."""
        self.rows[t] = state

    def arrived(self, timestep: TimeStep, cut: Array) -> None:
        """Store the last states of truncated episodes."""
        if len(cut) and timestep.final_state is not None:
            self.finals.append(timestep.final_state[cut].copy())

    def finish(self, state: Array) -> StateRows:
        """The states, closed at the present one."""
        self.rows[-1] = state
        none = np.zeros((0, *self.rows.shape[2:]), np.float32)
        return StateRows(self.rows, np.concatenate(self.finals) if self.finals else none)


def cut_short(timestep: TimeStep) -> Array:
    """Environments whose episode was truncated: their last observations are bootstrapped from."""
    if not timestep.ended.any():
        return np.zeros(0, np.int64)
    truncated = np.zeros_like(timestep.ended)
    for agent_step in timestep.agent_types.values():
        truncated |= agent_step.truncated.any(axis=1)
    return np.flatnonzero(timestep.ended & truncated)
