"""SAC's updates as one compiled loop, for perceptrons.

Read `sac_updates`, the last function. It does what `SAC.autograd_updates` does, on the same parameters and with the
same losses (`losses.py`); only the networks' derivatives are computed here instead of by autograd (tests hold both
equal within 1e-5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.algorithms.actor_critic import (
    Gradients,
    NetworkArrays,
    RowScaling,
    adam_step,
    gather_outcomes,
    make_gradients,
    move_target,
    policy_rows,
)
from coterie.algorithms.joint_transitions import JointTransitions
from coterie.algorithms.sac.losses import (
    Hyperparams,
    critic_loss,
    keep_lower,
    lower_value_slopes,
    policy_slopes,
    soft_targets,
    temperature_step,
)
from coterie.core.types import Array
from coterie.nn.kernels import OptimizedParams, Spec, backward_inputs, forward, sample_squashed


class Draws(NamedTuple):
    """The random numbers of an iteration's updates."""

    indices: Array  # [updates, B] int64: rows of the replay
    noise: Array  # [updates, 2, S, M, K] float32: of next actions, then of actions


class Iteration(NamedTuple):
    """Inputs of one iteration's updates."""

    rows: JointTransitions
    draws: Draws
    scaling: RowScaling
    actor_spec: Spec
    critic_spec: Spec
    hyperparams: Hyperparams


class Workspace(NamedTuple):
    """Arrays to work in, for one parameter set."""

    actor_inputs: Array  # [M, inputs of the policy]
    critic_inputs: Array  # [M, inputs of a critic]: the policy's, then an action
    actor_store: Array
    critic_stores: Array  # [2, …]
    gradients: Gradients
    reward: Array  # [M]
    discount: Array  # [M]
    weight: Array  # [M]
    target: Array  # [M]
    log_prob: Array  # [M]
    action: Array  # [M, K]
    action_slope: Array  # [M, K]


@njit(cache=True, error_model="numpy")
def make_workspace(rows: int, actor: Spec, critic: Spec) -> Workspace:
    """Room for batches of this many rows."""
    width = critic.sizes[0] - actor.sizes[0]
    return Workspace(
        np.empty((rows, actor.sizes[0]), np.float32),
        np.empty((rows, critic.sizes[0]), np.float32),
        np.empty(rows * actor.sizes[1:].sum(), np.float32),
        np.empty((2, rows * critic.sizes[1:].sum()), np.float32),
        make_gradients(rows, actor, critic),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        np.empty((rows, width), np.float32),
        np.empty((rows, width), np.float32),
    )


@njit(cache=True, error_model="numpy")
def _write_critic_inputs(x: Array, action: Array, y: Array) -> None:
    """Write critics' inputs: the policy's, then actions."""
    size = x.shape[1]
    for m in range(len(x)):
        for j in range(size):
            y[m, j] = x[m, j]
        for k in range(action.shape[1]):
            y[m, size + k] = action[m, k]


@njit(cache=True, error_model="numpy")
def _recorded_actions(action: Array, index: Array, s: int, into: Array) -> None:
    """Write the actions `[M, K]` of a parameter set's agents."""
    per, width = len(into) // len(index), into.shape[1]
    for i in range(len(index)):
        for p in range(per):
            for k in range(width):
                into[i * per + p, k] = action[index[i], (s + p) * width + k]


@njit(cache=True, error_model="numpy")
def _write_targets(
    it: Iteration, step: int, s: int, actor: Array, critics: tuple[NetworkArrays, ...], alpha: float, work: Workspace
) -> None:
    """Write the targets of a parameter set's critics."""
    index, spec = it.draws.indices[step], it.critic_spec
    policy_rows(it.rows.next_obs, index, 0, it.scaling, s, work.actor_inputs)
    out = forward(actor, it.actor_spec.sizes, it.actor_spec.relu, work.actor_inputs, work.actor_store)
    sample_squashed(out, it.draws.noise[step, 0, s], work.action, work.log_prob)
    _write_critic_inputs(work.actor_inputs, work.action, work.critic_inputs)
    for c in range(len(critics)):
        out = forward(critics[c].target[s], spec.sizes, spec.relu, work.critic_inputs, work.critic_stores[c])
        keep_lower(out, c == 0, work.target)
    gather_outcomes(it.rows, index, s, work.reward, work.discount, work.weight)
    soft_targets(work.reward, work.discount, work.log_prob, alpha, work.target)


@njit(cache=True, error_model="numpy")
def _actor_step(
    it: Iteration,
    step: int,
    s: int,
    actor: NetworkArrays,
    critics: tuple[NetworkArrays, ...],
    alpha: float,
    work: Workspace,
    steps: int,
) -> float:
    """One step of the policy up the lower critic and the entropy (eq. 7); returns the mean lower value."""
    spec, noise, size = it.critic_spec, it.draws.noise[step, 1, s], work.actor_inputs.shape[1]
    out = forward(actor.params[s], it.actor_spec.sizes, it.actor_spec.relu, work.actor_inputs, work.actor_store)
    sample_squashed(out, noise, work.action, work.log_prob)
    y, stores = work.critic_inputs, work.critic_stores
    _write_critic_inputs(work.actor_inputs, work.action, y)
    first = forward(critics[0].params[s], spec.sizes, spec.relu, y, stores[0])
    second = forward(critics[1].params[s], spec.sizes, spec.relu, y, stores[1])
    mean = lower_value_slopes(first, second, work.weight)
    for c in range(2):
        inputs = backward_inputs(critics[c].params[s], spec.sizes, spec.relu, y, stores[c], work.gradients.deltas)
        for m in range(len(y)):
            for k in range(work.action.shape[1]):
                work.action_slope[m, k] = inputs[m, size + k] + (work.action_slope[m, k] if c else np.float32(0))
    policy_slopes(out, noise, work.action, work.action_slope, work.weight, alpha)
    h = it.hyperparams
    adam_step(
        actor,
        s,
        it.actor_spec,
        work.actor_inputs,
        work.actor_store,
        work.gradients,
        steps,
        h.actor_rate,
        h.max_grad_norm,
    )
    return mean


@njit(cache=True, error_model="numpy")
def sac_updates(
    it: Iteration, actor: NetworkArrays, critics: tuple[NetworkArrays, ...], temperature: OptimizedParams, done: int
) -> Array:
    """All updates of an iteration, in place; `done` counts the earlier ones.

    Returns sums over updates of (critics' mean loss, mean value, mean error, mean lower value of the policy's actions,
    entropy), each averaged over parameter sets.
    """
    parameter_sets, rows = it.draws.noise.shape[2:4]
    work, spec, h = make_workspace(rows, it.actor_spec, it.critic_spec), it.critic_spec, it.hyperparams
    sums = np.zeros(5)
    for step in range(len(it.draws.indices)):
        index, steps = it.draws.indices[step], done + step + 1
        for s in range(parameter_sets):
            alpha = np.exp(temperature.flat[s, 0])
            _write_targets(it, step, s, actor.params[s], critics, alpha, work)
            policy_rows(it.rows.observation, index, 0, it.scaling, s, work.actor_inputs)
            _recorded_actions(it.rows.action, index, s, work.action)
            _write_critic_inputs(work.actor_inputs, work.action, work.critic_inputs)
            for c in range(len(critics)):
                store = work.critic_stores[c]
                out = forward(critics[c].params[s], spec.sizes, spec.relu, work.critic_inputs, store)
                loss, mean, error = critic_loss(out, work.target, work.weight)
                adam_step(
                    critics[c],
                    s,
                    spec,
                    work.critic_inputs,
                    store,
                    work.gradients,
                    steps,
                    h.critic_rate,
                    h.max_grad_norm,
                )
                sums[0] += loss / len(critics)
                if c == 0:
                    sums[1] += mean
                    sums[2] += error
            sums[3] += _actor_step(it, step, s, actor, critics, alpha, work, steps)
            sums[4] += temperature_step(temperature, s, work.log_prob, work.weight, h, steps)
        for critic in critics:
            move_target(critic, h.tau)
    return sums / parameter_sets
