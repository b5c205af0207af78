"""MADDPG's updates as one compiled loop, for perceptrons.

The twin of `MADDPG.autograd_updates`, on the same flat parameters and with the same numbers (within 1e-5); what it
works on is in `maddpg_desk.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.algorithms.action_kernels import settle, through_choices, unsquash
from coterie.algorithms.joint_transitions import JointTransitions
from coterie.algorithms.maddpg_desk import (
    Desk,
    Dials,
    Draws,
    Learned,
    Normal,
    Seats,
    critic_rows,
    make_desk,
    place_of_action,
    policy_rows,
)
from coterie.algorithms.outcome_kernels import FLOOR, TINY, hurdled, miss_hurdle, miss_quantiles, tell, unit
from coterie.judging import Judge, judge_row
from coterie.kernels import Spec, adam, backward, backward_inputs, forward, squash
from coterie.types import Array

# Actions ----------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _target_actions(
    rows: JointTransitions,
    draws: Draws,
    step: int,
    seats: Seats,
    normal: Normal,
    spec: Spec,
    target: Array,
    desk: Desk,
    ahead: Array,
) -> None:
    """Put what one's own target policies do next among everybody's next actions `ahead [B, U]`."""
    chosen, width = draws.chosen[step], seats.width
    per = desk.x.shape[0] // len(chosen)
    for stack in range(target.shape[0]):
        policy_rows(rows.following, chosen, seats, normal, stack, desk.x)
        out = forward(target[stack], spec.sizes, spec.relu, desk.x, desk.actor_store)
        for i in range(len(chosen)):
            for p in range(per):
                a = stack + p
                first = seats.done + a * width
                action = ahead[i, first : first + width]
                legal = rows.next_legal[chosen[i], first : first + width]
                settle(out[i * per + p], legal, seats.choices, seats.clipped, action)
                there = rows.going[chosen[i], seats.first + a]
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
    desk: Desk,
) -> None:
    """What decisions were worth, from the critics' rows of what follows; the critic that expects less is believed."""
    per, count = desk.x.shape[0] // len(chosen), desk.aim.shape[1]
    expected = np.empty(len(desk.share), np.float32)
    for c in range(len(critics) if ahead else 0):
        out = forward(critics[c].target[stack], spec.sizes, spec.relu, desk.y, desk.critic_store)
        for m in range(out.shape[0]):
            mean = tell(out[m], desk.chances, desk.outcomes)
            if c == 0 or np.isnan(mean) or mean < expected[m]:
                expected[m] = mean
                for q in range(count):
                    desk.aim[m, q], desk.odds[m, q] = desk.outcomes[q], desk.chances[q]
    live = 0
    for i in range(len(chosen)):
        for p in range(per):
            r, a, m = chosen[i], stack + p, i * per + p
            follows = rows.discount[r, a] > 0
            for q in range(count):
                later = rows.discount[r, a] * desk.aim[m, q] if follows else np.float32(0)
                desk.aim[m, q] = rows.reward[r, a] + later
                if not follows:
                    desk.odds[m, q] = 1 if q == 0 else 0
            live += rows.live[r, a]
    for i in range(len(chosen)):
        for p in range(per):
            desk.share[i * per + p] = rows.live[chosen[i], stack + p] / max(live, 1)


@njit(cache=True, error_model="numpy")
def _critic_step(
    critic: Learned, stack: int, spec: Spec, desk: Desk, dials: Dials, step: int
) -> tuple[float, float, float]:
    """One step towards the aims; returns (loss, mean value, mean error)."""
    out = forward(critic.flat[stack], spec.sizes, spec.relu, desk.y, desk.critic_store)
    loss = mean = error = 0.0
    amount = unit(desk.aim, desk.odds, desk.share) if hurdled(out.shape[1]) else 1.0
    for m in range(len(desk.share)):
        expected, share, aim = tell(out[m], desk.chances, desk.outcomes), desk.share[m], np.float32(0)
        for q in range(desk.aim.shape[1]):
            aim += desk.odds[m, q] * desk.aim[m, q]
        gap = expected - aim
        mean += share * expected
        error += share * abs(gap)
        if out.shape[1] == 1:
            loss += share * gap * gap / 2
            out[m, 0] = share * gap
        elif hurdled(out.shape[1]):
            desk.odd[:] = desk.odds[m]  # all critics aim at the same
            loss += share * miss_hurdle(out[m], desk.chances, desk.aim[m], desk.odd, desk.slopes, amount, share)
        else:
            loss += share * miss_quantiles(out[m], desk.chances, desk.aim[m], desk.odds[m], desk.slopes, share)
    grad = desk.grad[: critic.flat.shape[1]]
    grad[:] = 0
    backward(critic.flat[stack], spec.sizes, spec.relu, desk.y, desk.critic_store, desk.deltas, desk.part, grad)
    adam(critic.flat[stack], grad, critic.mean[stack], critic.square[stack], step, dials.critic_rate, dials.limit)
    return loss, mean, error


@njit(cache=True, error_model="numpy")
def _climb(judge: Judge, out: Array, desk: Desk, m: int) -> float:
    """What row m of a critic is worth to the group; it gives way to the gradient of what is lost."""
    share, count = desk.share[m], len(desk.chances)
    expected = tell(out, desk.chances, desk.outcomes)
    value = judge_row(judge, desk.chances, desk.outcomes, desk.slopes)
    mean = variance = 0.0
    for q in range(count):
        mean += desk.chances[q] * desk.slopes.chance[q]
        variance += desk.chances[q] * (desk.outcomes[q] - expected) ** 2
    first = 1 if hurdled(len(out)) else 0  # nothing is told apart from amounts
    if first:
        out[0] = -share * desk.chances[0] * (mean - desk.slopes.chance[0])
        mean = (mean - desk.chances[0] * desk.slopes.chance[0]) / max(desk.chances[1:].sum(), TINY)
    told = count - first
    for q in range(told):
        if told > 1:
            out[first + q] = -share * desk.chances[first + q] * (desk.slopes.chance[first + q] - mean)
        out[len(out) - told + q] = -share * desk.slopes.outcome[first + q]
    desk.spread[m] = np.sqrt(variance)
    return value


@njit(cache=True, error_model="numpy")
def _weigh(out: Array, desk: Desk) -> None:
    """Let decisions pull by how much they change in deviations of their outcome, as `outcomes.relative`."""
    usual = np.float32(0)
    for m in range(len(desk.share)):
        usual += desk.share[m] * desk.spread[m]
    for m in range(len(desk.share)):
        factor = (usual + TINY) / (desk.spread[m] + FLOOR * usual + TINY)
        for k in range(out.shape[1]):
            out[m, k] *= factor


@njit(cache=True, error_model="numpy")
def _actor_step(
    rows: JointTransitions,
    draws: Draws,
    step: int,
    seats: Seats,
    normal: Normal,
    stack: int,
    specs: tuple[Spec, Spec],
    actor: Learned,
    critic: Array,
    judge: Judge,
    desk: Desk,
    dials: Dials,
    done: int,
) -> float:
    """One step up the critic; `desk.y` holds its rows, into which one's own actions are put. Returns the mean value."""
    chosen, width, shown = draws.chosen[step], seats.width, rows.observation.shape[1]
    per, boxed = desk.x.shape[0] // len(chosen), len(seats.choices) == 0
    actor_spec, critic_spec = specs
    out = forward(actor.flat[stack], actor_spec.sizes, actor_spec.relu, desk.x, desk.actor_store)
    for i in range(len(chosen)):
        for p in range(per):
            m, a = i * per + p, stack + p
            at, first = place_of_action(seats, normal, shown, a), seats.done + a * width
            action = desk.y[m, at : at + width]
            if boxed:
                for k in range(width):
                    action[k] = squash(out[m, k], seats.clipped)
            else:
                legal = rows.legal[chosen[i], first : first + width]
                noise = draws.gumbel[step, i, a]
                through_choices(out[m], noise, legal, seats.choices, dials.temperature, action, desk.slope[m])
    value = forward(critic, critic_spec.sizes, critic_spec.relu, desk.y, desk.critic_store)
    mean = 0.0
    for m in range(len(desk.share)):
        mean += desk.share[m] * _climb(judge, value[m], desk, m)
    if dials.relative:
        _weigh(value, desk)
    inputs = backward_inputs(critic, critic_spec.sizes, critic_spec.relu, desk.y, desk.critic_store, desk.deltas)
    for m in range(len(desk.share)):
        at = place_of_action(seats, normal, shown, stack + m % per)
        if boxed:
            for k in range(width):
                out[m, k] = unsquash(inputs[m, at + k], out[m, k], desk.y[m, at + k], seats.clipped)
            continue
        start, hold = 0, np.float32(2 * dials.hold_back / width) * desk.share[m]
        for size in seats.choices:
            pull = np.float32(0)
            for k in range(start, start + size):
                pull += inputs[m, at + k] * desk.slope[m, k]
            for k in range(start, start + size):
                bent = desk.slope[m, k] * (inputs[m, at + k] - pull) / np.float32(dials.temperature)
                out[m, k] = bent + hold * out[m, k]
            start += size
    grad = desk.grad[: actor.flat.shape[1]]
    grad[:] = 0
    backward(
        actor.flat[stack], actor_spec.sizes, actor_spec.relu, desk.x, desk.actor_store, desk.deltas, desk.part, grad
    )
    adam(actor.flat[stack], grad, actor.mean[stack], actor.square[stack], done, dials.actor_rate, dials.limit)
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
    seats: Seats,
    normal: Normal,
    specs: tuple[Spec, Spec],
    actor: Learned,
    critics: tuple[Learned, ...],
    judge: Judge,
    dials: Dials,
    done: tuple[int, int],
) -> Array:
    """All updates in place; `done` counts the policy's and the critics' steps taken before.

    Returns sums over updates of (critics' mean loss, mean value, mean error) and of the policy's mean value, each
    averaged over stacks.
    """
    stacks, (updates, batch) = actor.flat.shape[0], draws.chosen.shape
    actor_spec, critic_spec = specs
    desk = make_desk(batch * seats.agents // stacks, actor_spec, critic_spec, seats.width)
    action, sums, taken = np.empty((batch, rows.action.shape[1]), np.float32), np.zeros(4), done[0]
    for step in range(updates):
        chosen, ahead = draws.chosen[step], draws.ahead[step]
        for i in range(batch):
            for k in range(action.shape[1]):
                action[i, k] = rows.action[chosen[i], k]
        goes_on = _goes_on(rows, chosen)
        if goes_on:
            _target_actions(rows, draws, step, seats, normal, actor_spec, actor.target, desk, ahead)
        moves = (done[1] + step + 1) % dials.delay == 0
        taken += moves
        for stack in range(stacks):
            if goes_on:
                policy_rows(rows.following, chosen, seats, normal, stack, desk.x)
                critic_rows(rows.following, ahead, chosen, seats, normal, stack, desk.x, desk.y)
            _aims(rows, chosen, goes_on, stack, critic_spec, critics, desk)
            policy_rows(rows.observation, chosen, seats, normal, stack, desk.x)
            critic_rows(rows.observation, action, chosen, seats, normal, stack, desk.x, desk.y)
            for c in range(len(critics)):
                loss, mean, error = _critic_step(critics[c], stack, critic_spec, desk, dials, done[1] + step + 1)
                sums[0] += loss / len(critics)
                if c == 0:
                    sums[1] += mean
                    sums[2] += error
            if moves:
                critic = critics[0].flat[stack]
                sums[3] += _actor_step(
                    rows, draws, step, seats, normal, stack, specs, actor, critic, judge, desk, dials, taken
                )
        if moves:
            _follow(actor, dials.follow)
            for critic in critics:
                _follow(critic, dials.follow)
    return sums / stacks
