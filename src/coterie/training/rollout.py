"""Rollout buffers: one per group, filled step by step, and closed as a table of decisions.

A decision is open until the same agent decides again or its episode ends. What is still open when a rollout ends is
kept here and becomes row 0 of the next one, with the rewards that have come for it so far.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.core import trees
from coterie.core.decisions import Decisions, Finals, StateRows
from coterie.core.group import Actor, GroupSpec
from coterie.core.trees import map_tree
from coterie.core.types import (
    Advice,
    AgentStep,
    Array,
    Decision,
    State,
    TimeStep,
    Tree,
    View,
    action_dtype,
    action_shape,
    blank,
)
from coterie.nn.launch import kernel


class Row(NamedTuple):
    """One group's decisions at one step, `[N, A, …]`; in a buffer `[T, N, A, …]`."""

    active: Array  # bool: the agent decided
    action: Array
    log_prob: Array | None
    mask: Array | None
    advice: Advice | None
    trace: dict[str, Array] | None


class Seen(NamedTuple):
    """Observations and memory, which the last time step has too: `[N, A, …]`; in a buffer `[T+1, N, A, …]`."""

    observation: Tree
    memory: Array | None


class Arrived(NamedTuple):
    """Rewards and ends that followed each step, `[T, N, A]`."""

    reward: Array  # float32
    group_reward: Array  # float32: the mean over the group
    terminated: Array  # bool
    truncated: Array  # bool


class OpenDecisions(NamedTuple):
    """The decisions of a group whose outcome is not known yet; `row.active` says who has one."""

    row: Row  # [N, A, …]
    seen: Seen  # [N, A, …]: of agents that left nothing open, the memory that they go on from
    reward: Array  # [N, A]: rewards so far; 0: none is open
    group_reward: Array  # [N, A]

    def state(self) -> State:
        """A copy for checkpoints."""
        state: State = trees.to_state(self)
        return state

    @classmethod
    def from_state(cls, state: State) -> OpenDecisions:
        """The inverse."""
        row = dict(state["row"])
        row["advice"] = None if row["advice"] is None else Advice(**row["advice"])
        return cls(Row(**row), Seen(**state["seen"]), state["reward"], state["group_reward"])


class RolloutBuffer:
    """Collects the decisions of one group during one rollout."""

    def __init__(self, actor: Actor, num_envs: int, rows: int, first: AgentStep) -> None:
        group_spec = actor.group_spec
        agents = (num_envs, len(group_spec.agents))
        shape, space, size = (rows, *agents), group_spec.spaces.action, actor.policy.memory_size
        mask, advice = actor.room(shape, None if first.mask is None else first.mask.shape[-1])
        self.group_spec = group_spec
        self.row = Row(
            active=np.zeros(shape, bool),
            action=blank((*shape, *action_shape(space)), action_dtype(space)),
            log_prob=np.zeros(shape, np.float32),
            mask=mask,
            advice=advice,
            trace=None,  # made for the first decision that has one; rows without one stay blank
        )
        self.seen = Seen(
            map_tree(lambda a: blank((rows + 1, *agents, *a.shape[2:]), a.dtype), first.observation),
            np.zeros((rows + 1, *agents, size), np.float32) if size else None,
        )
        self.arrived = Arrived(*(np.zeros(shape, kind) for kind in (np.float32, np.float32, bool, bool)))
        self.finals: list[Finals] = []

    def open(self, opening: OpenDecisions) -> None:
        """Start with the open decisions of the last rollout."""
        self._write(0, opening.row, opening.seen)
        self.arrived.reward[0], self.arrived.group_reward[0] = opening.reward, opening.group_reward

    def decided(self, t: int, view: View, decision: Decision) -> None:
        """Store the view and the decision of row t."""
        row = Row(view.acting, decision.action, decision.log_prob, view.mask, view.advice, decision.trace)
        self._write(t, row, Seen(view.observation, view.memory))

    def _write(self, t: int, row: Row, seen: Seen) -> None:
        if self.row.trace is None and row.trace is not None:
            self.row = self.row._replace(trace=trees.room(len(self.row.active), row.trace))
        trees.assign(self.row, t, row)
        trees.assign(self.seen, t, seen)

    def step(self, t: int, agent_step: AgentStep, cut: Array, memory: Array | None) -> None:
        """Store rewards and ends of row t; environments in `cut` were truncated and reset."""
        pick = picker(self.group_spec)
        self.arrived.reward[t] = pick(agent_step.reward)
        self.arrived.group_reward[t] = self.arrived.reward[t].mean(axis=1, keepdims=True)
        self.arrived.terminated[t] = pick(agent_step.terminated)
        self.arrived.truncated[t] = pick(agent_step.truncated)
        if len(cut):
            last = map_tree(lambda a: pick(a)[cut], agent_step.final_observation)
            index = np.stack([np.full(len(cut), t), cut], axis=1)
            self.finals.append(Finals(index, last, None if memory is None else memory[cut]))

    def finish(self, agent_step: AgentStep, memory: Array | None, episode: Array) -> Played:
        """The rollout until the present step; `episode` as in `Decisions`."""
        pick = picker(self.group_spec)
        trees.assign(self.seen, -1, Seen(map_tree(pick, agent_step.observation), memory))
        none = Finals(np.zeros((0, 2), np.int64), *map_tree(lambda a: a[0, :0], self.seen))
        finals = trees.join(self.finals) if self.finals else none
        return Played(self.row, self.seen, self.arrived, finals, pick(agent_step.acting), episode)


class Played(NamedTuple):
    """One group's rollout as it was played; row t holds the decision taken at t and what arrived at t+1."""

    row: Row
    seen: Seen
    arrived: Arrived
    finals: Finals
    acting: Array  # [N, A] bool: the agents that must act at row T
    episode: Array  # as in `Decisions`

    def close(self) -> Decisions:
        """The table of closed decisions. Where every agent decided in every row, its columns are the buffer's own."""
        row, arrived, shape = self.row, self.arrived, self.row.active.shape
        assert row.log_prob is not None  # buffers hold 0 where a policy has none
        steps = np.arange(shape[0])[:, None, None]
        ahead = np.broadcast_to(steps + 1, shape).copy()  # the row that an agent sees next if its copy goes on
        for k, (t, n) in enumerate(self.finals.at):
            ahead[t, n] = shape[0] + 1 + k
        if row.active.all() and (shape[0] == 0 or (self.acting | arrived.terminated[-1] | arrived.truncated[-1]).all()):
            found, valid = arrived, row.active
            following = np.where(arrived.truncated, ahead, np.where(arrived.terminated, steps, steps + 1))
        else:
            found, valid = Arrived(*map_tree(np.zeros_like, arrived)), np.zeros(shape, bool)
            following = np.broadcast_to(steps, shape).copy()

            def flat(array: Array) -> Array:
                return array.reshape(shape[0], -1)

            before, until = Arrived(*map_tree(flat, arrived)), Arrived(*map_tree(flat, found))
            arrays = flat(row.active), before, flat(ahead), until, flat(following), flat(valid)
            _close.over(self.acting.size, self.acting.reshape(-1), *arrays)
        return Decisions(
            observation=self.seen.observation,
            finals=self.finals,
            action=row.action,
            log_prob=row.log_prob,
            **found._asdict(),
            next=following,
            valid=valid,
            episode=self.episode,
            mask=row.mask,
            memory=self.seen.memory,
            advice=row.advice,
            trace=row.trace,
        )

    def left_open(self) -> OpenDecisions:
        """The decisions whose outcome is not known, with what has arrived for them."""
        active, arrived, remembered = self.row.active, self.arrived, self.seen.memory
        ends = arrived.terminated | arrived.truncated
        latest = len(active) - 1 - active[::-1].argmax(axis=0)  # only an agent's last decision can be open
        since = np.arange(len(active))[:, None, None] >= latest
        open_now = active.any(axis=0) & ~self.acting & ~(ends & since).any(axis=0)
        n, a = np.indices(open_now.shape)
        at = np.where(open_now, latest, 0)
        row, seen = Row(*trees.take(self.row, at, n, a)), Seen(*trees.take(self.seen, at, n, a))
        if remembered is not None and seen.memory is not None:  # others go on from what they remember now
            now = np.where(ends[-1][..., None], np.float32(0), remembered[-1])
            seen = seen._replace(memory=np.where(open_now[..., None], seen.memory, now))
        gained = (
            np.where(open_now, (reward * since).sum(axis=0, dtype=np.float32), np.float32(0))
            for reward in (arrived.reward, arrived.group_reward)
        )
        return OpenDecisions(row._replace(active=open_now), seen, *gained)


@kernel
def _close(
    i: int, acting: Array, active: Array, arrived: Arrived, ahead: Array, until: Arrived, following: Array, valid: Array
) -> None:
    """Go through the time of one agent backwards: `acting [L]`, all others `[T, L]`; the last three are filled."""
    steps, zero = active.shape[0], np.float32(0)
    closed, seen_next = acting[i], steps
    ended = cut = False
    own = group = zero
    for t in range(steps - 1, -1, -1):
        if arrived.terminated[t, i] or arrived.truncated[t, i]:
            closed, ended, cut, seen_next = True, arrived.terminated[t, i], arrived.truncated[t, i], ahead[t, i]
            own = group = zero
        own += arrived.reward[t, i]
        group += arrived.group_reward[t, i]
        if active[t, i]:
            if closed:
                valid[t, i] = True
                until.reward[t, i], until.group_reward[t, i] = own, group
                until.terminated[t, i], until.truncated[t, i] = ended, cut
                if cut or not ended:
                    following[t, i] = seen_next
            closed, seen_next, ended, cut = True, t, False, False
            own = group = zero


def picker(group_spec: GroupSpec) -> Any:
    """A function that selects a group's columns from an agent type's array `[N, A, …]`."""
    return (lambda a: a) if group_spec.whole else (lambda a: a[:, group_spec.columns])


class StateBuffer:
    """Collects the world's state during a rollout."""

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
