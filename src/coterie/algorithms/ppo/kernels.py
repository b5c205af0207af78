"""One PPO pass over a batch as a compiled loop, for perceptrons with discrete choices.

It does what `PPO.autograd_pass` does, with the same losses (`losses.py`), on the same flat parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.algorithms.ppo.losses import NAMES, LossSettings, normalize, policy_loss, value_loss
from coterie.core.types import Array
from coterie.nn.advice import add_advice_slopes
from coterie.nn.kernels import (
    BLOCK,
    OptimizedParams,
    Spec,
    adam,
    backward,
    categorical_slopes,
    categorical_statistics,
    forward,
)


class Decisions(NamedTuple):
    """Decisions to learn from, for one parameter set: the compiled twin of `minibatches.Batch`."""

    actor_input: Array  # [M, in]
    critic_input: Array  # [M, critic in]; may be the same array
    action: Array  # [M, K] int64
    mask: Array  # [M, outputs] bool, or [0, 0]
    log_prob: Array  # [M]
    importance: Array  # [M]
    advantage: Array  # [M]
    target: Array  # [M]
    value: Array  # [M]
    weight: Array  # [M]
    advice: Array  # [M, outputs] float32: probabilities that a loss pulls the policy to; [0, 0]: there is no such loss
    strength: Array  # [M] float32: weight of that loss; 0 where no advice was given


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    losses: LossSettings
    max_grad_norm: float
    learning_rate: float
    critic_learning_rate: float


class Block(NamedTuple):
    """Up to `BLOCK` decisions of a minibatch."""

    rows: Array  # [B] int64: which decisions
    weight: Array  # [B]: sums to 1 over the minibatch
    advantage: Array  # [B], normalised if that is wanted


@njit(cache=True, error_model="numpy")
def _policy_slopes(
    out: Array, decisions: Decisions, block: Block, choices: Array, settings: LossSettings, totals: Array
) -> None:
    """Replace logits `out [B, outputs]` by the slopes of the policy loss and add to `totals`."""
    masked, advised = decisions.mask.shape[0] > 0, decisions.advice.shape[0] > 0
    legal = decisions.mask[0] if masked else np.zeros(0, np.bool_)
    probability = np.empty(out.shape[1], np.float32)
    entropy = np.empty(len(choices), np.float32)
    for i in range(out.shape[0]):
        r, weight = block.rows[i], block.weight[i]
        if weight == 0:  # padding may hold anything, and 0·∞ is no number
            out[i] = 0
            continue
        if masked:
            legal = decisions.mask[r]
        action = decisions.action[r]
        log_prob = categorical_statistics(out[i], choices, action, legal, masked, probability, entropy)
        old, importance, advantage = decisions.log_prob[r], decisions.importance[r], block.advantage[i]
        slope, entropy_slope = policy_loss(
            log_prob, entropy.sum(), old, importance, advantage, weight, settings, totals
        )
        categorical_slopes(out[i], choices, action, probability, entropy, slope, entropy_slope)
        if advised and decisions.strength[r] > 0:
            add_advice_slopes(out[i], probability, decisions.advice[r], decisions.strength[r], weight)


@njit(cache=True, error_model="numpy")
def _value_slopes(out: Array, decisions: Decisions, block: Block, limit: float, totals: Array) -> None:
    """Replace values `out [B, 1]` by the slopes of the value loss and add to `totals`."""
    for i in range(out.shape[0]):
        r = block.rows[i]
        out[i, 0] = value_loss(out[i, 0], decisions.value[r], decisions.target[r], block.weight[i], limit, totals)


@njit(cache=True, error_model="numpy")
def _take(source: Array, rows: Array, buffer: Array) -> Array:
    """Copy rows into a buffer."""
    width = source.shape[1]
    into = buffer[: len(rows) * width].reshape(len(rows), width)
    for i in range(len(rows)):
        for j in range(width):
            into[i, j] = source[rows[i], j]
    return into


@njit(cache=True, error_model="numpy")
def ppo_pass(
    decisions: Decisions,
    order: Array,
    bounds: Array,
    specs: tuple[Spec, Spec],
    networks: tuple[OptimizedParams, OptimizedParams],
    choices: Array,
    hyperparams: Hyperparams,
    step: int,
) -> tuple[Array, float]:
    """One pass of minibatch steps over actor and critic, in place.

    Minibatch b takes decisions `order[bounds[b]:bounds[b+1]]`; `step` counts the Adam steps taken before.
    Returns the sums of `NAMES` over minibatches, and the `kl` of the latest.
    """
    totals, kl_before = np.zeros(len(NAMES)), 0.0
    (actor_spec, critic_spec), (actor, critic) = specs, networks
    losses, max_norm = hyperparams.losses, hyperparams.max_grad_norm
    widest = max(actor_spec.sizes.max(), critic_spec.sizes.max())
    buffer = np.empty(BLOCK * widest, np.float32)
    store = np.empty(BLOCK * max(actor_spec.sizes[1:].sum(), critic_spec.sizes[1:].sum()), np.float32)
    deltas = np.empty((2, BLOCK * widest), np.float32)
    part = np.empty(max(len(actor.flat), len(critic.flat)), np.float32)
    actor_grad, critic_grad = np.empty(len(actor.flat), np.float32), np.empty(len(critic.flat), np.float32)
    for b in range(len(bounds) - 1):
        rows = order[bounds[b] : bounds[b + 1]]
        weight, advantage = normalize(decisions.weight[rows], decisions.advantage[rows], losses.normalize_advantages)
        kl_before = totals[3]
        actor_grad[:] = 0
        critic_grad[:] = 0
        for first in range(0, len(rows), BLOCK):
            last = first + BLOCK
            block = Block(rows[first:last], weight[first:last], advantage[first:last])
            x = _take(decisions.actor_input, block.rows, buffer)
            out = forward(actor.flat, actor_spec.sizes, actor_spec.relu, x, store)
            _policy_slopes(out, decisions, block, choices, losses, totals)
            backward(actor.flat, actor_spec.sizes, actor_spec.relu, x, store, deltas, part, actor_grad)
            x = _take(decisions.critic_input, block.rows, buffer)
            out = forward(critic.flat, critic_spec.sizes, critic_spec.relu, x, store)
            _value_slopes(out, decisions, block, losses.value_clip, totals)
            backward(critic.flat, critic_spec.sizes, critic_spec.relu, x, store, deltas, part, critic_grad)
        step += 1
        adam(actor.flat, actor_grad, actor.mean, actor.square, step, hyperparams.learning_rate, max_norm)
        adam(critic.flat, critic_grad, critic.mean, critic.square, step, hyperparams.critic_learning_rate, max_norm)
    return totals, totals[3] - kl_before
