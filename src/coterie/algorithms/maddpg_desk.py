"""What the compiled updates of `maddpg_kernels.py` work on: who sits where, networks, room, and rows for networks.

Rows of stack s are `m = i · per + p` for row i of the batch and agent `s + p`: all agents of a group that shares its
parameters, or one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.algorithms.outcome_kernels import count_outcomes
from coterie.judging import Slopes, make_slopes
from coterie.kernels import Spec
from coterie.types import Array


class Draws(NamedTuple):
    """All that chance and the other groups decide about an iteration's updates."""

    chosen: Array  # [updates, B] int64: rows of the replay
    ahead: Array  # [updates, B, U] float32: everybody's next actions; one's own are put in later
    smooth: Array  # [updates, B, A, K] float32: noise on target actions, or empty
    gumbel: Array  # [updates, B, A, K] float32: on outputs of choices, or empty


class Seats(NamedTuple):
    """Where one's own numbers lie in everybody's, and what critics see."""

    agents: int
    first: int  # of everybody's agents
    seen: int  # of everybody's observations
    size: int  # numbers that one agent sees
    done: int  # of everybody's actions
    width: int  # numbers of one agent's action
    central: bool
    choices: Array  # [parts] int64: sizes of the choices that an action consists of; empty: a box
    clipped: bool  # how outputs are kept in a box


class Normal(NamedTuple):
    """How observations become inputs: of the policy by stacks, of a central critic all at once."""

    shift: Array  # [S, D]
    scale: Array  # [S, D]
    limit: float
    identities: int
    table_shift: Array  # [O]
    table_scale: Array  # [O]
    table_limit: float
    told: int


class Learned(NamedTuple):
    """Networks with their optimisers' memory and their targets, all `[S, P]`."""

    flat: Array
    mean: Array
    square: Array
    target: Array


class Dials(NamedTuple):
    """The numbers of one iteration."""

    actor_rate: float
    critic_rate: float
    limit: float  # of the gradients' norms
    temperature: float
    hold_back: float
    follow: float  # share of the way that targets move
    delay: int
    relative: bool


class Desk(NamedTuple):
    """Room to work in, for one stack."""

    x: Array  # [M, inputs of the policy]
    y: Array  # [M, inputs of a critic]
    actor_store: Array
    critic_store: Array
    deltas: Array  # [2, …]
    part: Array
    grad: Array
    aim: Array  # [M, Q]: outcomes that are aimed at
    odds: Array  # [M, Q]: and their chances
    odd: Array  # [Q]: of one row, to work on
    chances: Array  # [Q]: of one row
    outcomes: Array  # [Q]: of one row
    share: Array  # [M]
    spread: Array  # [M]: deviations of outcomes
    slope: Array  # [M, K]
    slopes: Slopes


@njit(cache=True, error_model="numpy")
def make_desk(rows: int, actor: Spec, critic: Spec, width: int) -> Desk:
    most = 0
    for sizes in (actor.sizes, critic.sizes):
        count = 0
        for layer in range(len(sizes) - 1):
            count += sizes[layer] * sizes[layer + 1] + sizes[layer + 1]
        most = max(most, count)
    count = count_outcomes(critic.sizes[-1])
    widest = max(actor.sizes.max(), critic.sizes.max())
    return Desk(
        np.empty((rows, actor.sizes[0]), np.float32),
        np.empty((rows, critic.sizes[0]), np.float32),
        np.empty(rows * actor.sizes[1:].sum(), np.float32),
        np.empty(rows * critic.sizes[1:].sum(), np.float32),
        np.empty((2, rows * widest), np.float32),
        np.empty(most, np.float32),
        np.empty(most, np.float32),
        np.empty((rows, count), np.float32),
        np.empty((rows, count), np.float32),
        np.empty(count, np.float32),
        np.empty(count, np.float32),
        np.empty(count, np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        np.empty((rows, width), np.float32),
        make_slopes(count),
    )


# Rows -------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def policy_rows(observation: Array, chosen: Array, seats: Seats, normal: Normal, stack: int, x: Array) -> None:
    """What the policy's network takes."""
    per, size = x.shape[0] // len(chosen), seats.size
    for i in range(len(chosen)):
        for p in range(per):
            a, into = stack + p, x[i * per + p]
            row = observation[chosen[i], seats.seen + a * size : seats.seen + (a + 1) * size]
            for j in range(size):
                scaled = (row[j] - normal.shift[stack, j]) * normal.scale[stack, j]
                into[j] = min(max(scaled, -normal.limit), normal.limit)
            for j in range(normal.identities):
                into[size + j] = 1 if j == a else 0


@njit(cache=True, error_model="numpy")
def critic_rows(
    observation: Array, action: Array, chosen: Array, seats: Seats, normal: Normal, stack: int, x: Array, y: Array
) -> None:
    """What a critic takes: what is seen, who one is, what is done `[B, U]`; `x` are the policy's rows."""
    per, shown = x.shape[0] // len(chosen), observation.shape[1]
    for i in range(len(chosen)):
        row = observation[chosen[i]]
        for p in range(per):
            into, a = y[i * per + p], stack + p
            if not seats.central:
                width = x.shape[1]
                for j in range(width):
                    into[j] = x[i * per + p, j]
                for k in range(seats.width):
                    into[width + k] = action[i, seats.done + a * seats.width + k]
                continue
            if p == 0:
                for j in range(shown):
                    scaled = (row[j] - normal.table_shift[j]) * normal.table_scale[j]
                    into[j] = min(max(scaled, -normal.table_limit), normal.table_limit)
            else:
                for j in range(shown):
                    into[j] = y[i * per, j]
            for j in range(normal.told):
                into[shown + j] = 1 if j == a else 0
            for k in range(action.shape[1]):
                into[shown + normal.told + k] = action[i, k]


@njit(cache=True, error_model="numpy")
def place_of_action(seats: Seats, normal: Normal, shown: int, a: int) -> int:
    """Where an agent's own action lies in its critic's row."""
    if seats.central:
        return shown + normal.told + seats.done + a * seats.width
    return seats.size + normal.identities
