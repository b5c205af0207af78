"""MADDPG's updates as one compiled loop, for perceptrons.

Read `maddpg_updates`, the last function. It does what `MADDPG.autograd_updates` does, on the same parameters and with
the same losses (`outcomes.py`); only the networks' derivatives are computed here instead of by autograd (tests hold
both equal within 1e-5). Rows of parameter set s are `m = i · per + p` for row i of the batch and agent `s + p`: `per`
is the number of agents with shared parameters, and 1 with individual ones.
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
from coterie.algorithms.maddpg.outcomes import (
    Scratch,
    Targets,
    actor_objective,
    bootstrap,
    critic_loss,
    is_hurdle,
    keep_lower,
    make_scratch,
    make_targets,
    mean_square,
    risk_values,
)
from coterie.core.group import RiskParameters
from coterie.core.types import Array
from coterie.nn.kernels import Spec, backward_inputs, forward, settle, squash, through_choices, unsquash

LOGIT_PENALTY = 1e-3  # weight of the mean square of logits, as in the authors' code: large logits stop exploration


class Draws(NamedTuple):
    """The random numbers of an iteration's updates, and the next actions of all agents."""

    indices: Array  # [updates, B] int64: rows of the replay
    next_action: Array  # [updates, B, U] float32: the group's own are written by the updates
    smoothing: Array  # [updates, B, A, K] float32: noise on target actions, or empty
    gumbel: Array  # [updates, B, A, K] float32: noise on logits of choices, or empty


class GroupLayout(NamedTuple):
    """Offsets of the group in joint rows, and the form of its critics and actions."""

    agents: int
    first_agent: int  # among all agents
    first_obs: int  # among all observed numbers
    obs_size: int  # observed numbers of one agent
    first_action: int  # among all action numbers
    action_size: int  # action numbers of one agent
    centralized: bool  # critics see all observations and actions
    own_first: bool  # a centralized critic sees its own agent first, then its teammates in cyclic order
    obs_order: Array  # [A, O] int64: columns of joint observations in the order in which each agent's critic sees them
    action_order: Array  # [A, U] int64: the same of joint actions
    choices: Array  # [parts] int64: sizes of the choices that an action consists of; empty: a box
    clipped: bool  # outputs are clipped to a box, not squashed by tanh


class InputScaling(NamedTuple):
    """Normalisation of network inputs, and the numbers of one-hot identities that follow them."""

    own: RowScaling  # for the policy
    joint_shift: Array  # [O]: for a centralized critic
    joint_scale: Array  # [O]
    joint_limit: float
    critic_identities: int


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    actor_rate: float
    critic_rate: float
    max_grad_norm: float
    temperature: float
    expected: bool  # the policy's gradient is that of its expectation over choices
    entropy: float  # weight of the policy's entropy in it
    tau: float
    policy_delay: int
    scale_by_std: bool


class Iteration(NamedTuple):
    """Inputs of one iteration's updates."""

    rows: JointTransitions
    draws: Draws
    layout: GroupLayout
    scaling: InputScaling
    actor_spec: Spec
    critic_spec: Spec
    risk: RiskParameters
    hyperparams: Hyperparams


class Workspace(NamedTuple):
    """Arrays to work in, for one parameter set."""

    actor_inputs: Array  # [M, inputs of the policy]
    critic_inputs: Array  # [M, inputs of a critic]
    actor_store: Array
    critic_store: Array
    gradients: Gradients
    reward: Array  # [M]
    discount: Array  # [M]
    targets: Targets
    scratch: Scratch
    logit_slopes: Array  # [M, K]: the relaxed choices, then slopes of the loss by logits
    choice_values: Array  # [M, K]: risk values of every choice


@njit(cache=True, error_model="numpy")
def make_workspace(rows: int, actor: Spec, critic: Spec, width: int) -> Workspace:
    """Room for batches of this many rows."""
    return Workspace(
        np.empty((rows, actor.sizes[0]), np.float32),
        np.empty((rows, critic.sizes[0]), np.float32),
        np.empty(rows * actor.sizes[1:].sum(), np.float32),
        np.empty(rows * critic.sizes[1:].sum(), np.float32),
        make_gradients(rows, actor, critic),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        make_targets(rows, critic.sizes[-1]),
        make_scratch(rows, critic.sizes[-1]),
        np.empty((rows, width), np.float32),
        np.empty((rows, width), np.float32),
    )


# Rows -------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def critic_rows(
    observation: Array,
    action: Array,
    index: Array,
    layout: GroupLayout,
    scaling: InputScaling,
    s: int,
    x: Array,
    y: Array,
) -> None:
    """Write critics' inputs `y`: observations, identities, actions `[B, U]`; `x` are the policy's inputs."""
    per, obs_size = x.shape[0] // len(index), observation.shape[1]
    for i in range(len(index)):
        row = observation[index[i]]
        for p in range(per):
            into, a = y[i * per + p], s + p
            if not layout.centralized:
                width = x.shape[1]
                for j in range(width):
                    into[j] = x[i * per + p, j]
                for k in range(layout.action_size):
                    into[width + k] = action[i, layout.first_action + a * layout.action_size + k]
                continue
            for j in range(obs_size):
                k = layout.obs_order[a, j]
                scaled = (row[k] - scaling.joint_shift[k]) * scaling.joint_scale[k]
                into[j] = min(max(scaled, -scaling.joint_limit), scaling.joint_limit)
            for j in range(scaling.critic_identities):
                into[obs_size + j] = 1 if j == a else 0
            for k in range(action.shape[1]):
                into[obs_size + scaling.critic_identities + k] = action[i, layout.action_order[a, k]]


@njit(cache=True, error_model="numpy")
def action_start(layout: GroupLayout, scaling: InputScaling, obs_size: int, a: int) -> int:
    """The index at which an agent's own action begins in its critic's inputs."""
    if layout.centralized:
        place = 0 if layout.own_first else a
        return obs_size + scaling.critic_identities + layout.first_action + place * layout.action_size
    return layout.obs_size + scaling.own.identities


@njit(cache=True, error_model="numpy")
def _any_continues(rows: JointTransitions, index: Array) -> bool:
    """Whether any next value counts; where every episode terminates, targets need no networks."""
    for r in index:
        for a in range(rows.discount.shape[1]):
            if rows.discount[r, a] > 0:
                return True
    return False


# Steps ------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _write_target_actions(it: Iteration, step: int, target: Array, workspace: Workspace) -> None:
    """Write the next actions of the group's own target policies among those of all agents."""
    rows, layout, index, smoothing = it.rows, it.layout, it.draws.indices[step], it.draws.smoothing
    per, width = workspace.actor_inputs.shape[0] // len(index), layout.action_size
    for s in range(target.shape[0]):
        policy_rows(rows.next_obs, index, layout.first_obs, it.scaling.own, s, workspace.actor_inputs)
        out = forward(target[s], it.actor_spec.sizes, it.actor_spec.relu, workspace.actor_inputs, workspace.actor_store)
        for i in range(len(index)):
            for p in range(per):
                a = s + p
                first = layout.first_action + a * width
                action = it.draws.next_action[step, i, first : first + width]
                legal = rows.next_legal[index[i], first : first + width]
                settle(out[i * per + p], legal, layout.choices, layout.clipped, action)
                active = rows.next_active[index[i], layout.first_agent + a]
                for k in range(width):
                    if smoothing.shape[1] > 0:
                        moved = action[k] + smoothing[step, i, a, k]
                        action[k] = min(max(moved, np.float32(-1)), np.float32(1))
                    if not active:
                        action[k] = 0


@njit(cache=True, error_model="numpy")
def _write_targets(
    it: Iteration, step: int, s: int, continues: bool, critics: tuple[NetworkArrays, ...], workspace: Workspace
) -> None:
    """Write the targets of a parameter set's critics."""
    index, spec = it.draws.indices[step], it.critic_spec
    if continues:
        x, y = workspace.actor_inputs, workspace.critic_inputs
        policy_rows(it.rows.next_obs, index, it.layout.first_obs, it.scaling.own, s, x)
        critic_rows(it.rows.next_obs, it.draws.next_action[step], index, it.layout, it.scaling, s, x, y)
        for c in range(len(critics)):
            out = forward(critics[c].target[s], spec.sizes, spec.relu, y, workspace.critic_store)
            keep_lower(out, c == 0, workspace.targets, workspace.scratch)
    gather_outcomes(it.rows, index, s, workspace.reward, workspace.discount, workspace.targets.weight)
    bootstrap(workspace.reward, workspace.discount, workspace.targets)


@njit(cache=True, error_model="numpy")
def _critic_step(
    it: Iteration, critic: NetworkArrays, s: int, scale: float, workspace: Workspace, steps: int
) -> tuple[float, float, float]:
    """One step of a critic towards the targets; returns (loss, mean value, mean error)."""
    spec, y, store = it.critic_spec, workspace.critic_inputs, workspace.critic_store
    out = forward(critic.params[s], spec.sizes, spec.relu, y, store)
    found = critic_loss(out, workspace.targets, scale, workspace.scratch)
    adam_step(
        critic, s, spec, y, store, workspace.gradients, steps, it.hyperparams.critic_rate, it.hyperparams.max_grad_norm
    )
    return found


@njit(cache=True, error_model="numpy")
def _act(it: Iteration, step: int, s: int, out: Array, workspace: Workspace) -> None:
    """Write the actions of the policy's outputs `[M, K]` into the critic's inputs; choices are drawn and relaxed."""
    layout, index = it.layout, it.draws.indices[step]
    per, width, obs_size = len(out) // len(index), layout.action_size, it.rows.observation.shape[1]
    for i in range(len(index)):
        for p in range(per):
            m, a = i * per + p, s + p
            at, first = action_start(layout, it.scaling, obs_size, a), layout.first_action + a * width
            action = workspace.critic_inputs[m, at : at + width]
            if len(layout.choices) == 0:
                for k in range(width):
                    action[k] = squash(out[m, k], layout.clipped)
                continue
            legal, noise = it.rows.legal[index[i], first : first + width], it.draws.gumbel[step, i, a]
            soft = workspace.logit_slopes[m]
            through_choices(out[m], noise, legal, layout.choices, it.hyperparams.temperature, action, soft)


@njit(cache=True, error_model="numpy")
def _action_slopes(it: Iteration, s: int, out: Array, inputs: Array, workspace: Workspace) -> None:
    """Replace the policy's outputs by the loss's slopes, given those by the critic's inputs."""
    layout, temperature = it.layout, np.float32(it.hyperparams.temperature)
    per, width = len(out) // it.draws.indices.shape[1], layout.action_size
    for m in range(len(out)):
        at = action_start(layout, it.scaling, it.rows.observation.shape[1], s + m % per)
        if len(layout.choices) == 0:
            for k in range(width):
                out[m, k] = unsquash(inputs[m, at + k], out[m, k], workspace.critic_inputs[m, at + k], layout.clipped)
            continue
        soft, start = workspace.logit_slopes[m], 0
        for size in layout.choices:
            pull = np.float32(0)
            for k in range(start, start + size):
                pull += inputs[m, at + k] * soft[k]
            for k in range(start, start + size):
                soft[k] = soft[k] * (inputs[m, at + k] - pull) / temperature
            start += size
    if len(layout.choices) > 0:
        penalise_logits(out, workspace.targets.weight, workspace.logit_slopes)
        out[:] = workspace.logit_slopes


@njit(cache=True, error_model="numpy")
def penalise_logits(logits: Array, weight: Array, slopes: Array) -> None:
    """Add the slopes of LOGIT_PENALTY · Σ weight · mean(logits²), for `logits` `[M, K]` and `weight` `[M]`."""
    for m in range(len(weight)):
        factor = np.float32(2 * LOGIT_PENALTY / logits.shape[1]) * weight[m]
        for k in range(logits.shape[1]):
            slopes[m, k] += factor * logits[m, k]


@njit(cache=True, error_model="numpy")
def _choice_values(it: Iteration, s: int, critic: Array, workspace: Workspace) -> None:
    """Write the risk values of every choice; other parts of a composite action are those in the critic's inputs."""
    spec, y, layout = it.critic_spec, workspace.critic_inputs, it.layout
    per, obs_size, start = len(y) // it.draws.indices.shape[1], it.rows.observation.shape[1], 0
    drawn = np.empty((len(y), layout.action_size), np.float32)
    for m in range(len(y)):
        at = action_start(layout, it.scaling, obs_size, s + m % per)
        drawn[m] = y[m, at : at + layout.action_size]
    for size in layout.choices:
        for k in range(start, start + size):
            for m in range(len(y)):
                at = action_start(layout, it.scaling, obs_size, s + m % per)
                y[m, at : at + layout.action_size] = drawn[m]
                y[m, at + start : at + start + size] = 0
                y[m, at + k] = 1
            out = forward(critic, spec.sizes, spec.relu, y, workspace.critic_store)
            risk_values(it.risk, out, workspace.choice_values[:, k], workspace.scratch)
        start += size


@njit(cache=True, error_model="numpy")
def expected_slopes(out: Array, legal: Array, values: Array, weight: Array, choices: Array, entropy: float) -> float:
    """The policy's expected value, the mean over parts; logits `out [M, K]` are replaced by slopes of its negative.

    With π the softmax of a part's legal logits and τ the entropy's weight the objective is Σ π_k (q_k − τ log π_k), and
    its slope by logit k is π_k (q_k − τ log π_k − the objective). No choice is drawn, so it has no noise (Ciosek and
    Whiteson 2020). Its maximum is the softmax of q/τ: rivals who answer each other so settle (a logit
    equilibrium, McKelvey and Palfrey 1995), where best answers would go round in circles.
    """
    mean = 0.0
    for m in range(len(weight)):
        start = 0
        for size in choices:
            top, total, value, objective = np.float32(-np.inf), 0.0, 0.0, 0.0
            for k in range(start, start + size):
                if legal[m, k]:
                    top = max(top, out[m, k])
            for k in range(start, start + size):
                if legal[m, k]:
                    total += np.exp(out[m, k] - top)
            log_total = np.log(total) + top
            for k in range(start, start + size):
                if legal[m, k]:
                    log_prob = out[m, k] - log_total
                    value += np.exp(log_prob) * values[m, k]
                    objective += np.exp(log_prob) * (values[m, k] - entropy * log_prob)
            for k in range(start, start + size):
                if legal[m, k]:
                    log_prob = out[m, k] - log_total
                    out[m, k] = -weight[m] * np.exp(log_prob) * (values[m, k] - entropy * log_prob - objective)
                else:
                    out[m, k] = 0
            mean += weight[m] * value / len(choices)
            start += size
    return mean


@njit(cache=True, error_model="numpy")
def _legal_rows(it: Iteration, step: int, s: int, legal: Array) -> None:
    """Write which choices are legal, for the rows of parameter set s."""
    index, width, first = it.draws.indices[step], it.layout.action_size, it.layout.first_action
    per = len(legal) // len(index)
    for m in range(len(legal)):
        at = first + (s + m % per) * width
        legal[m] = it.rows.legal[index[m // per], at : at + width]


@njit(cache=True, error_model="numpy")
def _actor_step(
    it: Iteration, step: int, s: int, actor: NetworkArrays, critic: Array, workspace: Workspace, steps: int
) -> float:
    """One step of the policy up the critic (Lowe et al. 2017, eq. 5); returns the mean risk value.

    The critic's inputs hold recorded actions; each agent's own is replaced by its policy's.
    """
    spec, y, h = it.critic_spec, workspace.critic_inputs, it.hyperparams
    x, store = workspace.actor_inputs, workspace.actor_store
    out = forward(actor.params[s], it.actor_spec.sizes, it.actor_spec.relu, x, store)
    _act(it, step, s, out, workspace)
    if h.expected and len(it.layout.choices) > 0:
        _choice_values(it, s, critic, workspace)
        legal = np.empty(out.shape, np.bool_)
        _legal_rows(it, step, s, legal)
        choices, values, weight = it.layout.choices, workspace.choice_values, workspace.targets.weight
        mean = expected_slopes(out, legal, values, weight, choices, h.entropy)
        adam_step(actor, s, it.actor_spec, x, store, workspace.gradients, steps, h.actor_rate, h.max_grad_norm)
        return mean
    predicted = forward(critic, spec.sizes, spec.relu, y, workspace.critic_store)
    mean = actor_objective(it.risk, predicted, workspace.targets.weight, h.scale_by_std, workspace.scratch)
    inputs = backward_inputs(critic, spec.sizes, spec.relu, y, workspace.critic_store, workspace.gradients.deltas)
    _action_slopes(it, s, out, inputs, workspace)
    adam_step(actor, s, it.actor_spec, x, store, workspace.gradients, steps, h.actor_rate, h.max_grad_norm)
    return mean


@njit(cache=True, error_model="numpy")
def maddpg_updates(
    it: Iteration, actor: NetworkArrays, critics: tuple[NetworkArrays, ...], amounts: Array, steps: tuple[int, int]
) -> Array:
    """All updates of an iteration, in place; `steps` counts the earlier steps of the policy and of the critics.

    `amounts [S, 2]` are the running sums of `mean_square`, for hurdle models.

    Returns sums over updates of (critics' mean loss, mean value, mean error) and of the policy's mean risk value, each
    averaged over parameter sets.
    """
    parameter_sets, (updates, batch) = actor.params.shape[0], it.draws.indices.shape
    width = it.layout.action_size
    workspace = make_workspace(batch * it.layout.agents // parameter_sets, it.actor_spec, it.critic_spec, width)
    x, y = workspace.actor_inputs, workspace.critic_inputs
    action, sums, actor_steps = np.empty((batch, it.rows.action.shape[1]), np.float32), np.zeros(4), steps[0]
    for step in range(updates):
        index, critic_steps = it.draws.indices[step], steps[1] + step + 1
        for i in range(batch):
            action[i] = it.rows.action[index[i]]
        continues = _any_continues(it.rows, index)
        if continues:
            _write_target_actions(it, step, actor.target, workspace)
        moves = critic_steps % it.hyperparams.policy_delay == 0
        actor_steps += moves
        for s in range(parameter_sets):
            _write_targets(it, step, s, continues, critics, workspace)
            policy_rows(it.rows.observation, index, it.layout.first_obs, it.scaling.own, s, x)
            critic_rows(it.rows.observation, action, index, it.layout, it.scaling, s, x, y)
            scale = mean_square(workspace.targets, amounts[s]) if is_hurdle(it.critic_spec.sizes[-1]) else 1.0
            for c in range(len(critics)):
                loss, mean, error = _critic_step(it, critics[c], s, scale, workspace, critic_steps)
                sums[0] += loss / len(critics)
                if c == 0:
                    sums[1] += mean
                    sums[2] += error
            if moves:
                sums[3] += _actor_step(it, step, s, actor, critics[0].params[s], workspace, actor_steps)
        if moves:
            move_target(actor, it.hyperparams.tau)
            for critic in critics:
                move_target(critic, it.hyperparams.tau)
    return sums / parameter_sets
