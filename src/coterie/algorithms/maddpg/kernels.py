"""MADDPG's updates as one compiled loop, for perceptrons.

The twin of `MADDPG.autograd_updates`, on the same flat parameters and with the same numbers (within 1e-5); what it
works on is in `maddpg_desk.py`.

What the compiled updates of `maddpg_kernels.py` work on: who sits where, networks, room, and rows for networks.

Rows of stack s are `m = i · per + p` for row i of the batch and agent `s + p`: all agents of a group that shares its
parameters, or one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.algorithms.maddpg.outcome_kernels import (
    FLOOR,
    TINY,
    count_outcomes,
    hurdled,
    miss_hurdle,
    miss_quantiles,
    tell,
    unit,
)
from coterie.algorithms.maddpg.transitions import JointTransitions
from coterie.core.group import RiskParameters
from coterie.core.types import Array
from coterie.nn.kernels import Spec, adam, backward, backward_inputs, forward, settle, squash, through_choices, unsquash
from coterie.preferences.risk_kernels import RiskSlopes, make_slopes, risk_value


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


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    actor_rate: float
    critic_rate: float
    limit: float  # of the gradients' norms
    temperature: float
    hold_back: float
    follow: float  # share of the way that targets move
    delay: int
    relative: bool


class Workspace(NamedTuple):
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
    slopes: RiskSlopes


@njit(cache=True, error_model="numpy")
def make_workspace(rows: int, actor: Spec, critic: Spec, width: int) -> Workspace:
    most = 0
    for sizes in (actor.sizes, critic.sizes):
        count = 0
        for layer in range(len(sizes) - 1):
            count += sizes[layer] * sizes[layer + 1] + sizes[layer + 1]
        most = max(most, count)
    count = count_outcomes(critic.sizes[-1])
    widest = max(actor.sizes.max(), critic.sizes.max())
    return Workspace(
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
def policy_rows(observation: Array, chosen: Array, actors: Seats, normal: Normal, stack: int, x: Array) -> None:
    """What the policy's network takes."""
    per, size = x.shape[0] // len(chosen), actors.size
    for i in range(len(chosen)):
        for p in range(per):
            a, into = stack + p, x[i * per + p]
            row = observation[chosen[i], actors.seen + a * size : actors.seen + (a + 1) * size]
            for j in range(size):
                scaled = (row[j] - normal.shift[stack, j]) * normal.scale[stack, j]
                into[j] = min(max(scaled, -normal.limit), normal.limit)
            for j in range(normal.identities):
                into[size + j] = 1 if j == a else 0


@njit(cache=True, error_model="numpy")
def critic_rows(
    observation: Array, action: Array, chosen: Array, actors: Seats, normal: Normal, stack: int, x: Array, y: Array
) -> None:
    """What a critic takes: what is seen, who one is, what is done `[B, U]`; `x` are the policy's rows."""
    per, shown = x.shape[0] // len(chosen), observation.shape[1]
    for i in range(len(chosen)):
        row = observation[chosen[i]]
        for p in range(per):
            into, a = y[i * per + p], stack + p
            if not actors.central:
                width = x.shape[1]
                for j in range(width):
                    into[j] = x[i * per + p, j]
                for k in range(actors.width):
                    into[width + k] = action[i, actors.done + a * actors.width + k]
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
def place_of_action(actors: Seats, normal: Normal, shown: int, a: int) -> int:
    """Where an agent's own action lies in its critic's row."""
    if actors.central:
        return shown + normal.told + actors.done + a * actors.width
    return actors.size + normal.identities


# Actions ----------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _target_actions(
    rows: JointTransitions,
    draws: Draws,
    step: int,
    actors: Seats,
    normal: Normal,
    spec: Spec,
    target: Array,
    workspace: Workspace,
    ahead: Array,
) -> None:
    """Put what one's own target policies do next among everybody's next actions `ahead [B, U]`."""
    chosen, width = draws.chosen[step], actors.width
    per = workspace.x.shape[0] // len(chosen)
    for stack in range(target.shape[0]):
        policy_rows(rows.following, chosen, actors, normal, stack, workspace.x)
        out = forward(target[stack], spec.sizes, spec.relu, workspace.x, workspace.actor_store)
        for i in range(len(chosen)):
            for p in range(per):
                a = stack + p
                first = actors.done + a * width
                action = ahead[i, first : first + width]
                legal = rows.next_legal[chosen[i], first : first + width]
                settle(out[i * per + p], legal, actors.choices, actors.clipped, action)
                there = rows.going[chosen[i], actors.first + a]
                for k in range(width):
                    if draws.smooth.shape[1] > 0:
                        moved = action[k] + draws.smooth[step, i, a, k]
                        action[k] = min(max(moved, np.float32(-1)), np.float32(1))
                    if not there:
                        action[k] = 0


# Steps ------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _goes_on(rows: JointTransitions, chosen: Array) -> bool:
    """Whether anything that follows counts; where every episode is over at once, nobody need look ahead."""
    for r in chosen:
        for a in range(rows.discount.shape[1]):
            if rows.discount[r, a] > 0:
                return True
    return False


@njit(cache=True, error_model="numpy")
def _aims(
    rows: JointTransitions,
    chosen: Array,
    ahead: bool,
    stack: int,
    spec: Spec,
    critics: tuple[Learned, ...],
    workspace: Workspace,
) -> None:
    """What decisions were worth, from the critics' rows of what follows; the critic that expects less is believed."""
    per, count = workspace.x.shape[0] // len(chosen), workspace.aim.shape[1]
    expected = np.empty(len(workspace.share), np.float32)
    for c in range(len(critics) if ahead else 0):
        out = forward(critics[c].target[stack], spec.sizes, spec.relu, workspace.y, workspace.critic_store)
        for m in range(out.shape[0]):
            mean = tell(out[m], workspace.chances, workspace.outcomes)
            if c == 0 or np.isnan(mean) or mean < expected[m]:
                expected[m] = mean
                for q in range(count):
                    workspace.aim[m, q], workspace.odds[m, q] = workspace.outcomes[q], workspace.chances[q]
    live = 0
    for i in range(len(chosen)):
        for p in range(per):
            r, a, m = chosen[i], stack + p, i * per + p
            follows = rows.discount[r, a] > 0
            for q in range(count):
                later = rows.discount[r, a] * workspace.aim[m, q] if follows else np.float32(0)
                workspace.aim[m, q] = rows.reward[r, a] + later
                if not follows:
                    workspace.odds[m, q] = 1 if q == 0 else 0
            live += rows.live[r, a]
    for i in range(len(chosen)):
        for p in range(per):
            workspace.share[i * per + p] = rows.live[chosen[i], stack + p] / max(live, 1)


@njit(cache=True, error_model="numpy")
def _critic_step(
    critic: Learned, stack: int, spec: Spec, workspace: Workspace, hyperparams: Hyperparams, step: int
) -> tuple[float, float, float]:
    """One step towards the aims; returns (loss, mean value, mean error)."""
    out = forward(critic.flat[stack], spec.sizes, spec.relu, workspace.y, workspace.critic_store)
    loss = mean = error = 0.0
    amount = unit(workspace.aim, workspace.odds, workspace.share) if hurdled(out.shape[1]) else 1.0
    for m in range(len(workspace.share)):
        expected, share, aim = tell(out[m], workspace.chances, workspace.outcomes), workspace.share[m], np.float32(0)
        for q in range(workspace.aim.shape[1]):
            aim += workspace.odds[m, q] * workspace.aim[m, q]
        gap = expected - aim
        mean += share * expected
        error += share * abs(gap)
        if out.shape[1] == 1:
            loss += share * gap * gap / 2
            out[m, 0] = share * gap
        elif hurdled(out.shape[1]):
            workspace.odd[:] = workspace.odds[m]  # all critics aim at the same
            loss += share * miss_hurdle(
                out[m], workspace.chances, workspace.aim[m], workspace.odd, workspace.slopes, amount, share
            )
        else:
            loss += share * miss_quantiles(
                out[m], workspace.chances, workspace.aim[m], workspace.odds[m], workspace.slopes, share
            )
    grad = workspace.grad[: critic.flat.shape[1]]
    grad[:] = 0
    backward(
        critic.flat[stack],
        spec.sizes,
        spec.relu,
        workspace.y,
        workspace.critic_store,
        workspace.deltas,
        workspace.part,
        grad,
    )
    adam(
        critic.flat[stack],
        grad,
        critic.mean[stack],
        critic.square[stack],
        step,
        hyperparams.critic_rate,
        hyperparams.limit,
    )
    return loss, mean, error


@njit(cache=True, error_model="numpy")
def _climb(judge: RiskParameters, out: Array, workspace: Workspace, m: int) -> float:
    """What row m of a critic is worth to the group; it gives way to the gradient of what is lost."""
    share, count = workspace.share[m], len(workspace.chances)
    expected = tell(out, workspace.chances, workspace.outcomes)
    value = risk_value(judge, workspace.chances, workspace.outcomes, workspace.slopes)
    mean = variance = 0.0
    for q in range(count):
        mean += workspace.chances[q] * workspace.slopes.probability[q]
        variance += workspace.chances[q] * (workspace.outcomes[q] - expected) ** 2
    first = 1 if hurdled(len(out)) else 0  # nothing is told apart from amounts
    if first:
        out[0] = -share * workspace.chances[0] * (mean - workspace.slopes.probability[0])
        mean = (mean - workspace.chances[0] * workspace.slopes.probability[0]) / max(workspace.chances[1:].sum(), TINY)
    told = count - first
    for q in range(told):
        if told > 1:
            out[first + q] = -share * workspace.chances[first + q] * (workspace.slopes.probability[first + q] - mean)
        out[len(out) - told + q] = -share * workspace.slopes.outcome[first + q]
    workspace.spread[m] = np.sqrt(variance)
    return value


@njit(cache=True, error_model="numpy")
def _weigh(out: Array, workspace: Workspace) -> None:
    """Let decisions pull by how much they change in deviations of their outcome, as `outcomes.relative`."""
    usual = np.float32(0)
    for m in range(len(workspace.share)):
        usual += workspace.share[m] * workspace.spread[m]
    for m in range(len(workspace.share)):
        factor = (usual + TINY) / (workspace.spread[m] + FLOOR * usual + TINY)
        for k in range(out.shape[1]):
            out[m, k] *= factor


@njit(cache=True, error_model="numpy")
def _actor_step(
    rows: JointTransitions,
    draws: Draws,
    step: int,
    actors: Seats,
    normal: Normal,
    stack: int,
    specs: tuple[Spec, Spec],
    actor: Learned,
    critic: Array,
    judge: RiskParameters,
    workspace: Workspace,
    hyperparams: Hyperparams,
    done: int,
) -> float:
    """One step up the critic; `workspace.y` holds its rows, into which one's own actions are put. Returns the mean value."""
    chosen, width, shown = draws.chosen[step], actors.width, rows.observation.shape[1]
    per, boxed = workspace.x.shape[0] // len(chosen), len(actors.choices) == 0
    actor_spec, critic_spec = specs
    out = forward(actor.flat[stack], actor_spec.sizes, actor_spec.relu, workspace.x, workspace.actor_store)
    for i in range(len(chosen)):
        for p in range(per):
            m, a = i * per + p, stack + p
            at, first = place_of_action(actors, normal, shown, a), actors.done + a * width
            action = workspace.y[m, at : at + width]
            if boxed:
                for k in range(width):
                    action[k] = squash(out[m, k], actors.clipped)
            else:
                legal = rows.legal[chosen[i], first : first + width]
                noise = draws.gumbel[step, i, a]
                through_choices(
                    out[m], noise, legal, actors.choices, hyperparams.temperature, action, workspace.slope[m]
                )
    value = forward(critic, critic_spec.sizes, critic_spec.relu, workspace.y, workspace.critic_store)
    mean = 0.0
    for m in range(len(workspace.share)):
        mean += workspace.share[m] * _climb(judge, value[m], workspace, m)
    if hyperparams.relative:
        _weigh(value, workspace)
    inputs = backward_inputs(
        critic, critic_spec.sizes, critic_spec.relu, workspace.y, workspace.critic_store, workspace.deltas
    )
    for m in range(len(workspace.share)):
        at = place_of_action(actors, normal, shown, stack + m % per)
        if boxed:
            for k in range(width):
                out[m, k] = unsquash(inputs[m, at + k], out[m, k], workspace.y[m, at + k], actors.clipped)
            continue
        start, hold = 0, np.float32(2 * hyperparams.hold_back / width) * workspace.share[m]
        for size in actors.choices:
            pull = np.float32(0)
            for k in range(start, start + size):
                pull += inputs[m, at + k] * workspace.slope[m, k]
            for k in range(start, start + size):
                bent = workspace.slope[m, k] * (inputs[m, at + k] - pull) / np.float32(hyperparams.temperature)
                out[m, k] = bent + hold * out[m, k]
            start += size
    grad = workspace.grad[: actor.flat.shape[1]]
    grad[:] = 0
    backward(
        actor.flat[stack],
        actor_spec.sizes,
        actor_spec.relu,
        workspace.x,
        workspace.actor_store,
        workspace.deltas,
        workspace.part,
        grad,
    )
    adam(
        actor.flat[stack], grad, actor.mean[stack], actor.square[stack], done, hyperparams.actor_rate, hyperparams.limit
    )
    return mean


@njit(cache=True, error_model="numpy")
def _follow(learned: Learned, rate: float) -> None:
    for s in range(learned.flat.shape[0]):
        for j in range(learned.flat.shape[1]):
            learned.target[s, j] += np.float32(rate) * (learned.flat[s, j] - learned.target[s, j])


@njit(cache=True, error_model="numpy")
def maddpg_updates(
    rows: JointTransitions,
    draws: Draws,
    actors: Seats,
    normal: Normal,
    specs: tuple[Spec, Spec],
    actor: Learned,
    critics: tuple[Learned, ...],
    judge: RiskParameters,
    hyperparams: Hyperparams,
    done: tuple[int, int],
) -> Array:
    """All updates in place; `done` counts the policy's and the critics' steps taken before.

    Returns sums over updates of (critics' mean loss, mean value, mean error) and of the policy's mean value, each
    averaged over stacks.
    """
    parameter_sets, (updates, batch) = actor.flat.shape[0], draws.chosen.shape
    actor_spec, critic_spec = specs
    workspace = make_workspace(batch * actors.agents // parameter_sets, actor_spec, critic_spec, actors.width)
    action, sums, taken = np.empty((batch, rows.action.shape[1]), np.float32), np.zeros(4), done[0]
    for step in range(updates):
        chosen, ahead = draws.chosen[step], draws.ahead[step]
        for i in range(batch):
            for k in range(action.shape[1]):
                action[i, k] = rows.action[chosen[i], k]
        goes_on = _goes_on(rows, chosen)
        if goes_on:
            _target_actions(rows, draws, step, actors, normal, actor_spec, actor.target, workspace, ahead)
        moves = (done[1] + step + 1) % hyperparams.delay == 0
        taken += moves
        for stack in range(parameter_sets):
            if goes_on:
                policy_rows(rows.following, chosen, actors, normal, stack, workspace.x)
                critic_rows(rows.following, ahead, chosen, actors, normal, stack, workspace.x, workspace.y)
            _aims(rows, chosen, goes_on, stack, critic_spec, critics, workspace)
            policy_rows(rows.observation, chosen, actors, normal, stack, workspace.x)
            critic_rows(rows.observation, action, chosen, actors, normal, stack, workspace.x, workspace.y)
            for c in range(len(critics)):
                loss, mean, error = _critic_step(
                    critics[c], stack, critic_spec, workspace, hyperparams, done[1] + step + 1
                )
                sums[0] += loss / len(critics)
                if c == 0:
                    sums[1] += mean
                    sums[2] += error
            if moves:
                critic = critics[0].flat[stack]
                sums[3] += _actor_step(
                    rows, draws, step, actors, normal, stack, specs, actor, critic, judge, workspace, hyperparams, taken
                )
        if moves:
            _follow(actor, hyperparams.follow)
            for critic in critics:
                _follow(critic, hyperparams.follow)
    return sums / parameter_sets
