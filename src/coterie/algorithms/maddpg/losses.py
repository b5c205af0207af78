"""MADDPG's rows, actions and slopes, compiled. Losses of outcome distributions are in `outcomes.py`.

Decisions of a batch are counted t = 0 to R − 1, those of one parameter set after those of another. Row `i · per + p` of
set s is that of agent `s + p` in row i of the batch, where `per` is the number of agents with shared parameters, and 1
with individual ones. A critic's inputs are observations, identities and actions, of all agents or of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.nn.kernels import squash, unsquash
from coterie.nn.launch import kernel
from coterie.nn.log_probs import IMPOSSIBLE

LOGIT_PENALTY = 1e-3  # weight of the mean square of logits, as in the authors' code: large logits stop exploration


class GroupLayout(NamedTuple):
    """Offsets of the group in joint rows, and the form of its critics."""

    sets: int  # parameter sets
    agents: int
    first_agent: int  # among all agents
    first_action: int  # among all action numbers
    action_size: int  # action numbers of one agent
    centralized: bool  # critics see all observations and actions
    own_first: bool  # a centralized critic sees its own agent first, then its teammates in cyclic order
    identities: int  # one-hot inputs of a centralized critic
    obs_order: Array  # [A, O] int64: columns of joint observations in the order in which each agent's critic sees them
    action_order: Array  # [A, U] int64: the same of joint actions


@jit(forceinline=True)
def place_of(t: int, decisions: int, layout: GroupLayout) -> tuple[int, int]:
    """The row of the batch and the agent of decision t, of so many in all."""
    count, per = decisions // layout.sets, layout.agents // layout.sets
    m = t % count
    return m // per, t // count + m % per


@kernel
def critic_inputs(
    t: int,
    layout: GroupLayout,
    observation: Array,
    action: Array,
    index: Array,
    shift: Array,
    scale: Array,
    limit: float,
    x: Array,
    y: Array,
) -> None:
    """Write a critic's inputs `y [R, …]` for observations `[rows, O]` at `index [B]` and actions `[B, U]`.

    `shift` and `scale [O]` normalise joint observations; `x [R, …]` are the policy's inputs.
    """
    i, a = place_of(t, len(y), layout)
    if not layout.centralized:
        for j in range(x.shape[1]):
            y[t, j] = x[t, j]
        for k in range(layout.action_size):
            y[t, x.shape[1] + k] = action[i, layout.first_action + a * layout.action_size + k]
        return
    size, r = observation.shape[1], index[i]
    for j in range(size):
        k = layout.obs_order[a, j]
        y[t, j] = min(max((observation[r, k] - shift[k]) * scale[k], -limit), limit)
    for j in range(layout.identities):
        y[t, size + j] = 1 if j == a else 0
    for k in range(action.shape[1]):
        y[t, size + layout.identities + k] = action[i, layout.action_order[a, k]]


@jit(forceinline=True)
def action_start(a: int, layout: GroupLayout) -> int:
    """The index of an agent's own action among the actions in its critic's inputs."""
    if not layout.centralized:
        return 0
    return layout.first_action + (0 if layout.own_first else a) * layout.action_size


@kernel
def place_actions(t: int, layout: GroupLayout, own: Array, y: Array, actions: int) -> None:
    """Write each agent's own action `[R, K]` into its critic's inputs, which end with so many numbers of actions."""
    _, a = place_of(t, len(y), layout)
    first = y.shape[1] - actions + action_start(a, layout)
    for k in range(layout.action_size):
        y[t, first + k] = own[t, k]


# Actions ----------------------------------------------------------------------------------------------


@jit
def _write_best(values: Array, t: int, choices: Array, legal: Array, row: int, first: int, action: Array) -> None:
    """Encode the highest of each choice's values `[t]`, the first of several; illegal ones count as `IMPOSSIBLE`."""
    start = 0
    for size in choices:
        best, top = start, np.float32(-np.inf)
        for k in range(start, start + size):
            value = values[t, k] if legal[row, first + k] else np.float32(IMPOSSIBLE)
            if value > top:
                best, top = k, value
        for k in range(start, start + size):
            action[t, k] = 1 if k == best else 0
        start += size


@kernel
def target_actions(
    t: int,
    layout: GroupLayout,
    out: Array,
    index: Array,
    next_legal: Array,
    next_active: Array,
    smoothing: Array,
    choices: Array,
    clipped: bool,
    found: Array,
    action: Array,
) -> None:
    """Write the next action of a target policy with outputs `[R, K]` among all agents' `action [B, U]`.

    `smoothing [B, A, K]` is added to it, or is empty; agents without a next action have 0. Scratch: `found [R, K]`.
    """
    i, a = place_of(t, len(out), layout)
    first = layout.first_action + a * layout.action_size
    if len(choices):
        _write_best(out, t, choices, next_legal, index[i], first, found)
    for k in range(layout.action_size):
        value = found[t, k] if len(choices) else squash(out[t, k], clipped)
        if smoothing.shape[1] > 0:
            value = min(max(value + smoothing[i, a, k], np.float32(-1)), np.float32(1))
        action[i, first + k] = value if next_active[index[i], layout.first_agent + a] else np.float32(0)


@kernel
def policy_actions(
    t: int,
    layout: GroupLayout,
    out: Array,
    index: Array,
    legal: Array,
    gumbel: Array,
    choices: Array,
    clipped: bool,
    temperature: float,
    action: Array,
    soft: Array,
) -> None:
    """Write the policy's action `[R, K]` for outputs `[R, K]`; choices are drawn with noise `gumbel [B, A, K]`.

    `soft [R, K]` is the softmax at the temperature that gradients of a drawn choice are taken of (Jang et al. 2017,
    eq. 2).
    """
    i, a = place_of(t, len(out), layout)
    first, start = layout.first_action + a * layout.action_size, 0
    if len(choices) == 0:
        for k in range(layout.action_size):
            action[t, k] = squash(out[t, k], clipped)
        return
    for k in range(layout.action_size):
        soft[t, k] = out[t, k] + gumbel[i, a, k]
    _write_best(soft, t, choices, legal, index[i], first, action)
    for size in choices:
        top, total = np.float32(-np.inf), np.float32(0)
        for k in range(start, start + size):
            value = soft[t, k] if legal[index[i], first + k] else np.float32(IMPOSSIBLE)
            soft[t, k] = value / np.float32(temperature)
            top = max(top, soft[t, k])
        for k in range(start, start + size):
            soft[t, k] = math.exp(soft[t, k] - top)
            total += soft[t, k]
        for k in range(start, start + size):
            soft[t, k] /= total
        start += size


@kernel
def output_slopes(
    t: int,
    layout: GroupLayout,
    out: Array,
    by_actions: Array,
    action: Array,
    soft: Array,
    weight: Array,
    choices: Array,
    clipped: bool,
    temperature: float,
    slopes: Array,
) -> None:
    """Slopes `[R, K]` by the policy's outputs, from those by the actions in the critic's inputs `[R, …]`.

    Logits of choices have a penalty besides: LOGIT_PENALTY · Σ weight · mean(logits²).
    """
    _, a = place_of(t, len(out), layout)
    first, start = action_start(a, layout), 0
    if len(choices) == 0:
        for k in range(layout.action_size):
            slopes[t, k] = unsquash(by_actions[t, first + k], out[t, k], action[t, k], clipped)
        return
    factor = np.float32(2 * LOGIT_PENALTY / out.shape[1]) * weight[t]
    for size in choices:
        pull = np.float32(0)
        for k in range(start, start + size):
            pull += by_actions[t, first + k] * soft[t, k]
        for k in range(start, start + size):
            found = soft[t, k] * (by_actions[t, first + k] - pull) / np.float32(temperature)
            slopes[t, k] = found + factor * out[t, k]
        start += size


@kernel
def try_choice(t: int, action: Array, start: int, stop: int, chosen: int, tried: Array) -> None:
    """Write `action [R, K]` with another choice among `start … stop`."""
    for k in range(action.shape[1]):
        tried[t, k] = action[t, k]
        if start <= k < stop:
            tried[t, k] = 1 if k == chosen else 0


@kernel
def legal_rows(t: int, layout: GroupLayout, index: Array, legal: Array, found: Array) -> None:
    """Write which choices `[R, K]` are legal."""
    i, a = place_of(t, len(found), layout)
    for k in range(layout.action_size):
        found[t, k] = legal[index[i], layout.first_action + a * layout.action_size + k]


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
