"""Transitions of n decisions for value learning, cut from experience as it comes in.

A transition begins with a decision and runs over the next n−1 decisions of the same lane: rewards are
discounted per decision, and the value of what follows is added by the learner. It is complete once the n-th
next decision has been taken or the episode has ended, which may be some rollouts later: what is still
incomplete waits in a queue per lane, so rollouts may be of any length.

A *lane* is what is valued as one: an agent in a copy, or, where values of a team are mixed, the group in a
copy. A lane has one member or one for each agent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array, Experience, StateRows


class Transitions(NamedTuple):
    """Rows to learn from, R of them, with M members, D observed numbers, K actions, Z numbers of state."""

    observation: Array  # [R, M, D] float32
    action: Array  # [R, M] int64
    reward: Array  # [R] float32: discounted sum until what follows
    discount: Array  # [R] float32: of the value of what follows; 0 where the episode terminated
    following: Array  # [R, M, D] float32: what is seen next; the last observation where the episode was cut short
    mask: Array  # [R, M, K] bool: what is legal next; everything at an end that was cut short
    active: Array  # [R, M] bool: who decided
    next_active: Array  # [R, M] bool: whose values follow
    agent: Array  # [R] int64: place of the first member in its group
    state: Array  # [R, Z] float32: of the whole table, for mixing
    next_state: Array  # [R, Z] float32


class Trajectories(NamedTuple):
    """Experience of some lanes `[T, L, M, …]`, as the scan reads it."""

    observation: Array  # [T+1, L, M, D]
    action: Array  # [T, L, M]
    reward: Array  # [T, L]
    active: Array  # [T, L, M] bool
    closed: Array  # [T, L, M] bool
    terminated: Array  # [T, L, M] bool
    truncated: Array  # [T, L, M] bool
    mask: Array  # [T, L, M, K] bool
    final_at: Array  # [T, L] int: which of the finals is the lane's last observation here, or −1
    final: Array  # [F, M, D]
    state: Array  # [T+1, L, Z]
    final_state: Array  # [F, Z]
    agent: Array  # [L] int: place of the first member in its group


class Queue(NamedTuple):
    """Decisions whose transitions are incomplete, oldest first: n places for each lane."""

    observation: Array  # [L, n, M, D]
    action: Array  # [L, n, M]
    reward: Array  # [L, n]
    active: Array  # [L, n, M]
    state: Array  # [L, n, Z]
    waiting: Array  # [L] int: how many


def empty_queue(lanes: int, steps: int, like: Transitions) -> Queue:
    """Nobody is waiting."""
    return Queue(
        np.zeros((lanes, steps, *like.observation.shape[1:]), np.float32),
        np.zeros((lanes, steps, *like.action.shape[1:]), np.int64),
        np.zeros((lanes, steps), np.float32),
        np.zeros((lanes, steps, *like.active.shape[1:]), bool),
        np.zeros((lanes, steps, *like.state.shape[1:]), np.float32),
        np.zeros(lanes, np.int64),
    )


def no_rows(rows: int, members: int, size: int, actions: int, state: int) -> Transitions:
    """Room for some transitions."""
    return Transitions(
        np.zeros((rows, members, size), np.float32),
        np.zeros((rows, members), np.int64),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
        np.zeros((rows, members, size), np.float32),
        np.ones((rows, members, actions), bool),
        np.zeros((rows, members), bool),
        np.zeros((rows, members), bool),
        np.zeros(rows, np.int64),
        np.zeros((rows, state), np.float32),
        np.zeros((rows, state), np.float32),
    )


def complete(lived: Trajectories, queue: Queue, gamma: float) -> Transitions:
    """The transitions that this experience completes; what it leaves incomplete stays in the queue."""
    steps, lanes, members = lived.active.shape
    most = steps * lanes + int(queue.waiting.sum())  # every decision becomes at most one transition
    shape = lived.observation.shape[-1], lived.mask.shape[-1], lived.state.shape[-1]
    into = no_rows(most, members, *shape)
    count = _scan(lived, queue, gamma, into)
    return Transitions(*(column[:count] for column in into))


# The scan copies by explicit loops: Numba takes seconds to compile an assignment of slices.


@njit(cache=True, error_model="numpy")
def _emit(queue: Queue, lane: int, group_spec: int, into: Transitions, at: int) -> None:
    """Copy a waiting decision into row `at`."""
    members, size = into.observation.shape[1:]
    into.reward[at] = queue.reward[lane, group_spec]
    for m in range(members):
        into.action[at, m] = queue.action[lane, group_spec, m]
        into.active[at, m] = queue.active[lane, group_spec, m]
        for j in range(size):
            into.observation[at, m, j] = queue.observation[lane, group_spec, m, j]
    for j in range(into.state.shape[1]):
        into.state[at, j] = queue.state[lane, group_spec, j]


@njit(cache=True, error_model="numpy")
def _follow(seen: Array, state: Array, into: Transitions, at: int) -> None:
    """Write what follows row `at`."""
    for m in range(seen.shape[0]):
        for j in range(seen.shape[1]):
            into.following[at, m, j] = seen[m, j]
    for j in range(len(state)):
        into.next_state[at, j] = state[j]


@njit(cache=True, error_model="numpy")
def _push(queue: Queue, lane: int, lived: Trajectories, t: int) -> None:
    """Let a decision wait, behind those already waiting."""
    group_spec = queue.waiting[lane]
    members, size = lived.observation.shape[2:]
    queue.reward[lane, group_spec] = 0
    for m in range(members):
        queue.action[lane, group_spec, m] = lived.action[t, lane, m]
        queue.active[lane, group_spec, m] = lived.active[t, lane, m]
        for j in range(size):
            queue.observation[lane, group_spec, m, j] = lived.observation[t, lane, m, j]
    for j in range(lived.state.shape[2]):
        queue.state[lane, group_spec, j] = lived.state[t, lane, j]
    queue.waiting[lane] = group_spec + 1


@njit(cache=True, error_model="numpy")
def _shift(queue: Queue, lane: int) -> None:
    """Let the oldest go."""
    members, size = queue.observation.shape[2:]
    for group_spec in range(queue.waiting[lane] - 1):
        queue.reward[lane, group_spec] = queue.reward[lane, group_spec + 1]
        for m in range(members):
            queue.action[lane, group_spec, m] = queue.action[lane, group_spec + 1, m]
            queue.active[lane, group_spec, m] = queue.active[lane, group_spec + 1, m]
            for j in range(size):
                queue.observation[lane, group_spec, m, j] = queue.observation[lane, group_spec + 1, m, j]
        for j in range(queue.state.shape[2]):
            queue.state[lane, group_spec, j] = queue.state[lane, group_spec + 1, j]
    queue.waiting[lane] -= 1


@njit(cache=True, error_model="numpy")
def _look(lived: Trajectories, t: int, lane: int) -> tuple[bool, bool, bool, bool]:
    """Whether the lane decides here, knows what came of it, was ended here, and was cut short in that."""
    decides = known = ended = plays_on = cut = False
    for m in range(lived.active.shape[2]):
        active, truncated = lived.active[t, lane, m], lived.truncated[t, lane, m]
        over = truncated or lived.terminated[t, lane, m]
        decides |= active
        known |= active and lived.closed[t, lane, m]
        ended |= over
        plays_on |= active and not over
        cut |= truncated
    return decides, known, ended and not plays_on, cut


@njit(cache=True, error_model="numpy")
def _scan(lived: Trajectories, queue: Queue, gamma: float, into: Transitions) -> int:
    """Fill `into`, in the order of time, and say how many rows there are."""
    steps, lanes, members = lived.active.shape
    depth, rows = queue.reward.shape[1], 0
    waits = np.ones(lanes, np.bool_)  # False behind a decision that is open: it comes again in the next rollout
    for t in range(steps):
        for lane in range(lanes):
            decides, known, ended, cut = _look(lived, t, lane)
            if decides and not known:
                waits[lane] = False
            if not waits[lane]:
                continue
            if decides:
                if queue.waiting[lane] == depth:
                    _emit(queue, lane, 0, into, rows)
                    into.discount[rows] = gamma**depth
                    into.agent[rows] = lived.agent[lane]
                    _follow(lived.observation[t, lane], lived.state[t, lane], into, rows)
                    for m in range(members):
                        into.next_active[rows, m] = lived.active[t, lane, m]
                        for k in range(lived.mask.shape[3]):
                            into.mask[rows, m, k] = lived.mask[t, lane, m, k]
                    rows += 1
                    _shift(queue, lane)
                _push(queue, lane, lived, t)
            count = queue.waiting[lane]
            for group_spec in range(count):
                queue.reward[lane, group_spec] += gamma ** (count - 1 - group_spec) * lived.reward[t, lane]
            if not ended:
                continue
            final = lived.final_at[t, lane]
            for group_spec in range(count):
                _emit(queue, lane, group_spec, into, rows)
                into.discount[rows] = gamma ** (count - group_spec) if cut else 0.0
                into.agent[rows] = lived.agent[lane]
                if final >= 0:
                    _follow(lived.final[final], lived.final_state[final], into, rows)
                else:
                    _follow(lived.observation[t + 1, lane], lived.state[t + 1, lane], into, rows)
                for m in range(members):
                    into.next_active[rows, m] = lived.truncated[t, lane, m]
                rows += 1
            queue.waiting[lane] = 0
    return rows


# From a group's experience ----------------------------------------------------------------------------


def lanes_of(own: Experience, packed: Array, final: Array, rewards: Array, parameter_sets: int) -> list[Trajectories]:
    """One Lived for each stack of parameters: every agent of every copy, or one agent of every copy.

    `packed [T+1, N, A, D]` and `final [F, A, D]` are the observations as rows of floats.
    """
    steps, num_envs, agents = own.active.shape
    per = agents if parameter_sets == 1 else 1  # agents of a copy that are lanes of one stack
    lanes = num_envs * per
    at = np.full((steps, num_envs), -1)
    at[tuple(own.finals.index.T)] = np.arange(len(own.finals.index))
    closed = own.closed()
    assert own.mask is not None
    found = []
    for stack in range(parameter_sets):
        pick = slice(stack, stack + per)

        def rows(array: Array, pick: slice = pick) -> Array:
            chosen = np.ascontiguousarray(array[:, :, pick])
            return chosen.reshape(len(array), lanes, 1, *array.shape[3:])

        which = at[:, :, None] * per + np.arange(per)
        found.append(
            Trajectories(
                rows(packed),
                rows(own.action),
                rows(rewards)[:, :, 0],
                rows(own.active),
                rows(closed),
                rows(own.terminated),
                rows(own.truncated),
                rows(own.mask),
                np.where(at[:, :, None] < 0, -1, which).reshape(steps, lanes),
                np.ascontiguousarray(final[:, pick]).reshape(len(final) * per, 1, final.shape[-1]),
                np.zeros((steps + 1, lanes, 0), np.float32),
                np.zeros((len(final) * per, 0), np.float32),
                np.tile(np.arange(agents)[pick], num_envs),
            )
        )
    return found


def team_of(own: Experience, packed: Array, final: Array, rewards: Array, state: StateRows) -> Trajectories:
    """The group of every copy as one lane, rewarded by the mean over its agents."""
    steps, num_envs = own.active.shape[:2]
    at = np.full((steps, num_envs), -1)
    at[tuple(own.finals.index.T)] = np.arange(len(own.finals.index))
    assert own.mask is not None
    return Trajectories(
        packed,
        own.action,
        rewards.mean(axis=2, dtype=np.float32),
        own.active,
        own.closed(),
        own.terminated,
        own.truncated,
        own.mask,
        at,
        final,
        state.rows,
        state.finals,
        np.zeros(num_envs, np.int64),
    )
