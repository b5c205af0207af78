"""PPO's passes over a batch as compiled loops, for perceptrons with discrete choices.

The twin of `PPO.autograd_pass`, on the same flat parameters and with the same numbers (within 1e-5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.nn.kernels import BLOCK, Pair, Spec, adam, backward, forward, log_softmax


class Rows(NamedTuple):
    """Decisions to learn from, for one stack; the compiled twin of `ppo.Batch`."""

    x: Array  # [M, in] actor's input
    seen: Array  # [M, critic in] critic's input; may be the same array
    action: Array  # [M, K] int64
    mask: Array  # [M, outputs] bool, or [0, 0]
    log_prob: Array  # [M]
    advantage: Array  # [M]
    target: Array  # [M]
    value: Array  # [M]
    weight: Array  # [M]


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    clip: float
    value_clip: float  # in the critic's units; 0: none
    entropy: float
    limit: float  # of the gradient's norm
    rate: float
    critic_rate: float
    normalize: bool


@njit(cache=True, error_model="numpy")
def _policy_loss(
    out: Array, rows: Rows, at: Array, share: Array, adv: Array, choices: Array, hyperparams: Hyperparams, sums: Array
) -> None:
    """Turn logits into the loss's gradient, in place, and add losses to `sums` (Schulman et al. 2017, eq. 7)."""
    masked = rows.mask.shape[0] > 0
    legal = rows.mask[0] if masked else np.zeros(0, np.bool_)
    chance = np.empty(out.shape[1], np.float32)
    own = np.empty(len(choices), np.float32)  # each choice's own entropy
    for i in range(out.shape[0]):
        r, w = at[i], share[i]
        if w == 0:  # padding may hold anything, and 0·∞ is no number
            out[i] = 0
            continue
        if masked:
            legal = rows.mask[r]
        start = 0
        log_prob = np.float32(0)
        for k in range(len(choices)):
            stop = start + choices[k]
            log_softmax(out[i], start, stop, legal, masked)
            log_prob += out[i, start + rows.action[r, k]]
            own[k] = 0
            for j in range(start, stop):
                chance[j] = np.exp(out[i, j])
                own[k] -= chance[j] * out[i, j]
            start = stop
        log_ratio = log_prob - rows.log_prob[r]
        ratio = np.exp(log_ratio)
        near = min(max(ratio, np.float32(1 - hyperparams.clip)), np.float32(1 + hyperparams.clip))
        gain = min(ratio * adv[i], near * adv[i])
        sums[0] -= w * gain
        sums[2] += w * own.sum()
        sums[3] += w * (ratio - 1 - log_ratio)
        sums[4] += w * (abs(ratio - 1) > hyperparams.clip)
        push = -w * ratio * adv[i] if ratio * adv[i] <= near * adv[i] else np.float32(0)
        pull = np.float32(hyperparams.entropy) * w
        start = 0
        for k in range(len(choices)):
            stop = start + choices[k]
            for j in range(start, stop):
                out[i, j] = chance[j] * (pull * (out[i, j] + own[k]) - push)
            out[i, start + rows.action[r, k]] += push
            start = stop


@njit(cache=True, error_model="numpy")
def _value_loss(out: Array, rows: Rows, at: Array, share: Array, limit: float, sums: Array) -> None:
    """Turn values into the gradient of half the squared error, in place."""
    for i in range(out.shape[0]):
        r = at[i]
        error = out[i, 0] - rows.target[r]
        loss, slope = error * error, error
        if limit > 0:
            move = out[i, 0] - rows.value[r]
            near = min(max(move, np.float32(-limit)), np.float32(limit))
            held = rows.value[r] + near - rows.target[r]
            if held * held > loss:
                loss, slope = held * held, held if near == move else np.float32(0)
        sums[1] += np.float32(0.5) * share[i] * loss
        out[i, 0] = share[i] * slope


@njit(cache=True, error_model="numpy")
def _shares(rows: Rows, at: Array, normalize: bool) -> tuple[Array, Array]:
    """Each row's share of the mean, and its advantage, normalised if asked."""
    total = np.float32(0)
    for r in at:
        total += rows.weight[r]
    share = rows.weight[at] / max(total, np.float32(1))
    adv = rows.advantage[at]
    if normalize:
        mean = 0.0
        for i in range(len(at)):
            mean += share[i] * adv[i]
        variance = 0.0
        for i in range(len(at)):
            variance += share[i] * (adv[i] - mean) ** 2
        adv = (adv - np.float32(mean)) / np.float32(np.sqrt(variance) + 1e-8)
    return share, adv


@njit(cache=True, error_model="numpy")
def _take(source: Array, at: Array, room: Array) -> Array:
    """Copy rows into a buffer."""
    width = source.shape[1]
    into = room[: len(at) * width].reshape(len(at), width)
    for i in range(len(at)):
        for j in range(width):
            into[i, j] = source[at[i], j]
    return into


@njit(cache=True, error_model="numpy")
def ppo_pass(
    rows: Rows,
    order: Array,
    bounds: Array,
    specs: tuple[Spec, Spec],
    pairs: tuple[Pair, Pair],
    choices: Array,
    hyperparams: Hyperparams,
    step: int,
) -> Array:
    """One pass of minibatch steps over actor and critic, in place.

    Minibatch b takes rows `order[bounds[b]:bounds[b+1]]`; `step` counts the Adam steps taken before.
    Returns the sums of (policy loss, value loss, entropy, KL, share outside the clip) over minibatches.
    """
    sums = np.zeros(5)
    actor, critic = specs
    mine, theirs = pairs
    widest = max(actor.sizes.max(), critic.sizes.max())
    room = np.empty(BLOCK * widest, np.float32)
    store = np.empty(BLOCK * max(actor.sizes[1:].sum(), critic.sizes[1:].sum()), np.float32)
    deltas = np.empty((2, BLOCK * widest), np.float32)
    part = np.empty(max(len(mine.flat), len(theirs.flat)), np.float32)
    grad, slope = np.empty(len(mine.flat), np.float32), np.empty(len(theirs.flat), np.float32)
    for b in range(len(bounds) - 1):
        whole = order[bounds[b] : bounds[b + 1]]
        shares, advs = _shares(rows, whole, hyperparams.normalize)
        grad[:] = 0
        slope[:] = 0
        for first in range(0, len(whole), BLOCK):
            at, share, adv = whole[first : first + BLOCK], shares[first : first + BLOCK], advs[first : first + BLOCK]
            x = _take(rows.x, at, room)
            out = forward(mine.flat, actor.sizes, actor.relu, x, store)
            _policy_loss(out, rows, at, share, adv, choices, hyperparams, sums)
            backward(mine.flat, actor.sizes, actor.relu, x, store, deltas, part, grad)
            x = _take(rows.seen, at, room)
            out = forward(theirs.flat, critic.sizes, critic.relu, x, store)
            _value_loss(out, rows, at, share, hyperparams.value_clip, sums)
            backward(theirs.flat, critic.sizes, critic.relu, x, store, deltas, part, slope)
        step += 1
        adam(mine.flat, grad, mine.mean, mine.square, step, hyperparams.rate, hyperparams.limit)
        adam(theirs.flat, slope, theirs.mean, theirs.square, step, hyperparams.critic_rate, hyperparams.limit)
    return sums
