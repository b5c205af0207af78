"""n-step transitions for value learning, built from tables of decisions as they arrive.

A transition begins with a decision and runs over the next n−1 decisions of the same sequence: rewards are discounted
per decision, and the learner adds the value of the next state. It is complete once the n-th next decision has been
taken or the episode has ended, which may be some rollouts later: incomplete ones wait as `PendingSteps`, so rollouts
may be of any length. Where a member of a team is truncated while others play on, transitions end with that step, with
fewer than n decisions: the truncated member's next value belongs there.

A *sequence* is what gets one value at a time: an agent in a copy of the world, or, where a mixer joins the values of a
team, the whole group in a copy. It has one member, or one for each agent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.core.decisions import Decisions, StateRows
from coterie.core.jit import device_function
from coterie.core.types import Array
from coterie.nn.launch import kernel


class Transitions(NamedTuple):
    """R rows to learn from, with M members, D numbers of an observation, K actions, Z numbers of state."""

    observation: Array  # [R, M, D] float32, pictures as bytes, or choices as numbers
    action: Array  # [R, M] int64
    reward: Array  # [R] float32: discounted sum until the next state
    discount: Array  # [R] float32: of the next state's value; 0 where the episode terminated
    next_obs: Array  # [R, M, D] likewise: the final observation where the episode was truncated
    # [R, M, K] bool: legal actions there; where the member was truncated those of its last decision: worlds do not say
    # what is legal afterwards, and the values of actions that are never legal mean nothing
    next_mask: Array
    active: Array  # [R, M] bool: which members decided
    next_active: Array  # [R, M] bool: which members have a next value: those that play on or were just truncated
    agent: Array  # [R] int64: index of the first member in its group
    state: Array  # [R, Z] float32: of the whole world, for the mixer
    next_state: Array  # [R, Z] float32
    advised: Array  # [R, M] int64: the advisor's most likely action; −1: no advice
    mask: Array  # [R, M, K] bool: legal actions of the decision


class Trajectories(NamedTuple):
    """Decisions of L sequences `[T, L, M, …]`, as the scan reads it."""

    observation: Array  # [T+1, L, M, D]
    action: Array  # [T, L, M]
    reward: Array  # [T, L]
    active: Array  # [T, L, M] bool
    terminated: Array  # [T, L, M] bool
    truncated: Array  # [T, L, M] bool
    mask: Array  # [T, L, M, K] bool
    next: Array  # [T, L] int: the row of what is seen next; T + 1 + f: the f-th final
    final: Array  # [F, M, D]
    state: Array  # [T+1, L, Z]
    final_state: Array  # [F, Z]
    agent: Array  # [L] int: index of the first member in its group
    advised: Array  # [T, L, M] int: the advisor's most likely action; −1: no advice


class PendingSteps(NamedTuple):
    """Decisions whose transitions are incomplete, oldest first: n slots for each sequence."""

    observation: Array  # [L, n, M, D]
    action: Array  # [L, n, M]
    reward: Array  # [L, n]
    active: Array  # [L, n, M]
    state: Array  # [L, n, Z]
    advised: Array  # [L, n, M]
    mask: Array  # [L, n, M, K]
    cut: Array  # [L, M] bool: members that the latest step truncated while others of the sequence play on
    filled: Array  # [L] int: how many slots are in use


def no_pending(sequences: int, steps: int, like: Transitions) -> PendingSteps:
    """Empty slots for decisions of n = `steps`."""
    return PendingSteps(
        np.zeros((sequences, steps, *like.observation.shape[1:]), like.observation.dtype),
        np.zeros((sequences, steps, *like.action.shape[1:]), np.int64),
        np.zeros((sequences, steps), np.float32),
        np.zeros((sequences, steps, *like.active.shape[1:]), bool),
        np.zeros((sequences, steps, *like.state.shape[1:]), np.float32),
        np.full((sequences, steps, *like.action.shape[1:]), -1),
        np.ones((sequences, steps, *like.mask.shape[1:]), bool),
        np.zeros((sequences, *like.active.shape[1:]), bool),
        np.zeros(sequences, np.int64),
    )


def empty_transitions(
    rows: int, members: int, size: int, actions: int, state: int, dtype: Any = np.float32
) -> Transitions:
    """Room for some transitions; `dtype` is that of observations, bytes for pictures."""
    return Transitions(
        np.zeros((rows, members, size), dtype),
        np.zeros((rows, members), np.int64),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
        np.zeros((rows, members, size), dtype),
        np.ones((rows, members, actions), bool),
        np.zeros((rows, members), bool),
        np.zeros((rows, members), bool),
        np.zeros(rows, np.int64),
        np.zeros((rows, state), np.float32),
        np.zeros((rows, state), np.float32),
        np.full((rows, members), -1),
        np.ones((rows, members, actions), bool),
    )


def complete_transitions(trajectories: Trajectories, pending: PendingSteps, gamma: float) -> Transitions:
    """The transitions that this experience completes; those it leaves incomplete stay pending."""
    steps, sequences, members = trajectories.active.shape
    most = steps * sequences + int(pending.filled.sum())  # every decision becomes at most one transition
    shape = trajectories.observation.shape[-1], trajectories.mask.shape[-1], trajectories.state.shape[-1]
    into = empty_transitions(most, members, *shape, dtype=trajectories.observation.dtype)
    counts = np.zeros((steps, sequences), np.int64)
    _count.over(sequences, trajectories, pending, counts)
    ends = counts.cumsum().reshape(counts.shape)  # rows are in the order of time
    _scan.over(sequences, trajectories, pending, gamma, ends - counts, into)
    rows = int(ends[-1, -1]) if ends.size else 0
    return Transitions(*(column[:rows] for column in into))


@kernel
def _count(i: int, trajectories: Trajectories, pending: PendingSteps, counts: Array) -> None:
    """Count the rows that each step of one sequence fills, `counts` [T, L]; the same walk as that of `_scan`."""
    steps, _, members = trajectories.active.shape
    n, filled, cut = pending.reward.shape[1], pending.filled[i], _any_cut(pending, i)
    for t in range(steps):
        decides, ended, _ = _step_flags(trajectories, t, i)
        if not decides:
            continue
        while filled == n or (filled > 0 and cut):
            counts[t, i] += 1
            filled -= 1
        filled, cut = filled + 1, False
        for m in range(members):
            cut |= trajectories.truncated[t, i, m]
        if ended:
            counts[t, i] += filled
            filled, cut = 0, False


@kernel
def _scan(
    i: int, trajectories: Trajectories, pending: PendingSteps, gamma: float, first_row: Array, into: Transitions
) -> None:
    """Fill the rows of one sequence, those of step t from `first_row` [T, L] on."""
    steps, _, members = trajectories.active.shape
    n = pending.reward.shape[1]
    for t in range(steps):
        row = first_row[t, i]
        decides, ended, truncated = _step_flags(trajectories, t, i)
        if not decides:
            continue
        while pending.filled[i] == n or (pending.filled[i] > 0 and _any_cut(pending, i)):
            _write_decision(pending, i, 0, into, row)
            into.discount[row] = gamma ** pending.filled[i]
            into.agent[row] = trajectories.agent[i]
            _write_next(trajectories.observation[t, i], trajectories.state[t, i], into, row)
            _write_next_members(trajectories, pending, t, i, into, row)
            row += 1
            _drop_oldest(pending, i)
        _append(pending, i, trajectories, t)
        for m in range(members):
            pending.cut[i, m] = trajectories.truncated[t, i, m]
        count = pending.filled[i]
        for slot in range(count):
            pending.reward[i, slot] += gamma ** (count - 1 - slot) * trajectories.reward[t, i]
        if ended:
            _write_ended(trajectories, pending, t, i, gamma if truncated else 0.0, into, row)


@device_function
def _any_cut(pending: PendingSteps, i: int) -> bool:
    """Whether a member of the sequence was truncated while others play on."""
    cut = False
    for m in range(pending.cut.shape[1]):
        cut |= pending.cut[i, m]
    return cut


@device_function
def _write_next_members(
    trajectories: Trajectories, pending: PendingSteps, t: int, i: int, into: Transitions, row: int
) -> None:
    """Write which members have a next value, and what is legal for them there."""
    last = pending.filled[i] - 1
    for m in range(into.next_active.shape[1]):
        cut = pending.cut[i, m]
        into.next_active[row, m] = trajectories.active[t, i, m] or cut
        for k in range(into.next_mask.shape[2]):
            into.next_mask[row, m, k] = pending.mask[i, last, m, k] if cut else trajectories.mask[t, i, m, k]


@device_function
def _write_ended(
    trajectories: Trajectories, pending: PendingSteps, t: int, i: int, gamma: float, into: Transitions, row: int
) -> None:
    """Fill a row with each pending decision of a sequence that ends at t; γ is 0 where it terminated."""
    count, after, steps = pending.filled[i], trajectories.next[t, i], trajectories.active.shape[0]
    for slot in range(count):
        _write_decision(pending, i, slot, into, row)
        into.discount[row] = gamma ** (count - slot)
        into.agent[row] = trajectories.agent[i]
        if after > steps:
            final = after - steps - 1
            _write_next(trajectories.final[final], trajectories.final_state[final], into, row)
        else:
            _write_next(trajectories.observation[after, i], trajectories.state[after, i], into, row)
        for m in range(into.next_active.shape[1]):
            into.next_active[row, m] = trajectories.truncated[t, i, m]
            for k in range(into.next_mask.shape[2]):
                into.next_mask[row, m, k] = pending.mask[i, count - 1, m, k]
        row += 1
    pending.filled[i] = 0
    for m in range(pending.cut.shape[1]):
        pending.cut[i, m] = False


@device_function
def _step_flags(trajectories: Trajectories, t: int, i: int) -> tuple[bool, bool, bool]:
    """Whether a sequence decides at t, whether it ends before it decides again, and whether by truncation."""
    decides = ended = plays_on = cut = False
    for m in range(trajectories.active.shape[2]):
        active, truncated = trajectories.active[t, i, m], trajectories.truncated[t, i, m]
        over = truncated or trajectories.terminated[t, i, m]
        decides |= active
        ended |= over
        plays_on |= active and not over
        cut |= truncated
    return decides, ended and not plays_on, cut


@device_function
def _write_decision(pending: PendingSteps, i: int, slot: int, into: Transitions, row: int) -> None:
    """Copy a pending decision into a row."""
    members, size = into.observation.shape[1:]
    into.reward[row] = pending.reward[i, slot]
    for m in range(members):
        into.action[row, m] = pending.action[i, slot, m]
        into.active[row, m] = pending.active[i, slot, m]
        into.advised[row, m] = pending.advised[i, slot, m]
        for j in range(size):
            into.observation[row, m, j] = pending.observation[i, slot, m, j]
        for k in range(into.mask.shape[2]):
            into.mask[row, m, k] = pending.mask[i, slot, m, k]
    for j in range(into.state.shape[1]):
        into.state[row, j] = pending.state[i, slot, j]


@device_function
def _write_next(observation: Array, state: Array, into: Transitions, row: int) -> None:
    """Copy the next observation and state into a row."""
    for m in range(observation.shape[0]):
        for j in range(observation.shape[1]):
            into.next_obs[row, m, j] = observation[m, j]
    for j in range(len(state)):
        into.next_state[row, j] = state[j]


@device_function
def _append(pending: PendingSteps, i: int, trajectories: Trajectories, t: int) -> None:
    """Append a decision to the pending ones."""
    slot = pending.filled[i]
    members, size = trajectories.observation.shape[2:]
    pending.reward[i, slot] = 0
    for m in range(members):
        pending.action[i, slot, m] = trajectories.action[t, i, m]
        pending.active[i, slot, m] = trajectories.active[t, i, m]
        pending.advised[i, slot, m] = trajectories.advised[t, i, m]
        for j in range(size):
            pending.observation[i, slot, m, j] = trajectories.observation[t, i, m, j]
        for k in range(trajectories.mask.shape[3]):
            pending.mask[i, slot, m, k] = trajectories.mask[t, i, m, k]
    for j in range(trajectories.state.shape[2]):
        pending.state[i, slot, j] = trajectories.state[t, i, j]
    pending.filled[i] = slot + 1


@device_function
def _drop_oldest(pending: PendingSteps, i: int) -> None:
    """Remove the oldest pending decision."""
    members, size = pending.observation.shape[2:]
    for slot in range(pending.filled[i] - 1):
        pending.reward[i, slot] = pending.reward[i, slot + 1]
        for m in range(members):
            pending.action[i, slot, m] = pending.action[i, slot + 1, m]
            pending.active[i, slot, m] = pending.active[i, slot + 1, m]
            pending.advised[i, slot, m] = pending.advised[i, slot + 1, m]
            for j in range(size):
                pending.observation[i, slot, m, j] = pending.observation[i, slot + 1, m, j]
            for k in range(pending.mask.shape[3]):
                pending.mask[i, slot, m, k] = pending.mask[i, slot + 1, m, k]
        for j in range(pending.state.shape[2]):
            pending.state[i, slot, j] = pending.state[i, slot + 1, j]
    pending.filled[i] -= 1


# From a group's decisions ----------------------------------------------------------------------------


def agent_trajectories(
    own: Decisions, packed: Array, final: Array, rewards: Array, parameter_sets: int
) -> list[Trajectories]:
    """Trajectories for each parameter set: of every agent in every copy, or of one agent in every copy.

    `packed [T+1, N, A, D]` and `final [F, A, D]` are the observations as rows of floats.
    """
    steps, num_envs, agents = own.valid.shape
    per_env = agents if parameter_sets == 1 else 1  # sequences of a copy that belong to one parameter set
    sequences = num_envs * per_env
    assert own.mask is not None
    advised, found = best_advice(own), []
    for first in range(parameter_sets):
        pick = slice(first, first + per_env)

        def rows(array: Array, pick: slice = pick) -> Array:
            chosen = np.ascontiguousarray(array[:, :, pick])
            return chosen.reshape(len(array), sequences, 1, *array.shape[3:])

        after = own.next[:, :, pick]
        final_row = (after - steps - 1) * per_env + np.arange(per_env) + steps + 1
        found.append(
            Trajectories(
                rows(packed),
                rows(own.action),
                rows(rewards)[:, :, 0],
                rows(own.valid),
                rows(own.terminated),
                rows(own.truncated),
                rows(own.mask),
                np.where(after > steps, final_row, after).reshape(steps, sequences),
                np.ascontiguousarray(final[:, pick]).reshape(len(final) * per_env, 1, final.shape[-1]),
                np.zeros((steps + 1, sequences, 0), np.float32),
                np.zeros((len(final) * per_env, 0), np.float32),
                np.tile(np.arange(agents)[pick], num_envs),
                rows(advised),
            )
        )
    return found


def team_trajectories(own: Decisions, packed: Array, final: Array, rewards: Array, state: StateRows) -> Trajectories:
    """The group in every copy as one sequence, with the mean reward of its agents."""
    assert own.mask is not None
    return Trajectories(
        packed,
        own.action,
        rewards.mean(axis=2, dtype=np.float32),
        own.valid,
        own.terminated,
        own.truncated,
        own.mask,
        own.next.max(axis=2),
        final,
        state.rows,
        state.finals,
        np.zeros(own.valid.shape[1], np.int64),
        best_advice(own),
    )


def best_advice(own: Decisions) -> Array:
    """The advisor's most likely action in every decision `[T, N, A]`; −1: no advice."""
    if own.advice is None:
        return np.full(own.valid.shape, -1)
    return np.where(own.advice.given, own.advice.probabilities.argmax(axis=-1), -1)
