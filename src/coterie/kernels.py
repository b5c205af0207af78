"""Small networks without a framework: forward, backward, PPO's losses and Adam as compiled loops.

A two-layer perceptron of width 64 spends most of its time in PyTorch's bookkeeping. These functions do the
same arithmetic (equal to autograd within 1e-5, which tests hold) on the same flat parameters, for
perceptrons with discrete choices. Everything else goes through autograd; both paths share `adam`.
Parameters lie as in `nets.Flat`: for every layer the weights `[inputs, outputs]`, then the biases.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.types import Array

BLOCK = 512  # rows that a forward pass takes at once, so that activations stay in the cache
FAST = {"contract", "arcp", "nsz", "reassoc"}  # reorder sums, but keep NaN and infinity as they are


def available() -> bool:
    """Whether products can be compiled: Numba takes them from SciPy."""
    return importlib.util.find_spec("scipy") is not None


class Spec(NamedTuple):
    """A perceptron: widths from input to output, and which activation lies between."""

    sizes: Array  # [layers + 1] int64
    relu: bool


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _activate(z: Array, bias: Array, relu: bool) -> None:
    """Add the bias and apply the activation in place; tanh by a rational function exact to float32."""
    rows, width = z.shape
    if relu:
        for i in range(rows):
            for j in range(width):
                z[i, j] = max(z[i, j] + bias[j], np.float32(0))
        return
    for i in range(rows):
        for j in range(width):
            x = min(max(z[i, j] + bias[j], np.float32(-7.9053111)), np.float32(7.9053111))
            s = x * x
            p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
            p = p * s + np.float32(-8.60467152213735e-11)
            p = p * s + np.float32(5.12229709037114e-08)
            p = p * s + np.float32(1.48572235717979e-05)
            p = p * s + np.float32(6.37261928875436e-04)
            p = p * s + np.float32(4.89352455891786e-03)
            q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
            q = q * s + np.float32(2.26843463243900e-03)
            q = q * s + np.float32(4.89352518554385e-03)
            z[i, j] = x * p / q


@njit(cache=True, error_model="numpy")
def _forward(flat: Array, sizes: Array, relu: bool, x: Array, store: Array) -> Array:
    """Outputs `[M, out]`; they and all hidden activations lie in `store`, layer after layer."""
    rows = x.shape[0]
    at, kept = 0, 0
    h = x
    last = len(sizes) - 2
    for layer in range(last + 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        weight = flat[at : at + inputs * outputs].reshape(inputs, outputs)
        bias = flat[at + inputs * outputs : at + inputs * outputs + outputs]
        at += inputs * outputs + outputs
        z = store[kept : kept + rows * outputs].reshape(rows, outputs)
        kept += rows * outputs
        np.dot(h, weight, z)
        if layer < last:
            _activate(z, bias, relu)
        else:
            for i in range(rows):
                for j in range(outputs):
                    z[i, j] += bias[j]
        h = z
    return h


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _through(delta: Array, h: Array, relu: bool) -> None:
    """Multiply by the activation's derivative, in place."""
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            if relu:
                if h[i, j] <= 0:
                    delta[i, j] = 0
            else:
                delta[i, j] *= np.float32(1) - h[i, j] * h[i, j]


@njit(cache=True, error_model="numpy")
def _backward(
    flat: Array, sizes: Array, relu: bool, x: Array, store: Array, deltas: Array, part: Array, grad: Array
) -> None:
    """Add the gradient of everything that `_forward` used, given the loss's gradient in place of its outputs.

    `deltas` has room for two layers' gradients, `part` for one layer's weights.
    """
    rows = x.shape[0]
    at, kept, turn = len(flat), 0, 0
    for layer in range(1, len(sizes)):
        kept += rows * sizes[layer]
    kept -= rows * sizes[-1]
    delta = store[kept : kept + rows * sizes[-1]].reshape(rows, sizes[-1])
    for layer in range(len(sizes) - 2, -1, -1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        at -= inputs * outputs + outputs
        bias = grad[at + inputs * outputs : at + inputs * outputs + outputs]
        for i in range(rows):
            for j in range(outputs):
                bias[j] += delta[i, j]
        kept -= rows * inputs
        h = x if layer == 0 else store[kept : kept + rows * inputs].reshape(rows, inputs)
        np.dot(h.T, delta, part[: inputs * outputs].reshape(inputs, outputs))
        for i in range(inputs * outputs):
            grad[at + i] += part[i]
        if layer > 0:
            weight = flat[at : at + inputs * outputs].reshape(inputs, outputs)
            before = deltas[turn, : rows * inputs].reshape(rows, inputs)
            np.dot(delta, weight.T, before)
            _through(before, h, relu)
            delta, turn = before, 1 - turn


@njit(cache=True, error_model="numpy")
def adam(flat: Array, grad: Array, mean: Array, square: Array, step: int, rate: float, limit: float) -> None:
    """One Adam step (Kingma & Ba 2015, algorithm 1) along a gradient scaled to at most `limit`, all `[P]`."""
    total = 0.0
    for i in range(len(grad)):
        total += float(grad[i]) * float(grad[i])
    scale = np.float32(min(1.0, limit / (np.sqrt(total) + 1e-6)))
    rate_now = np.float32(rate / (1 - 0.9**step))
    root = np.float32(1 / np.sqrt(1 - 0.999**step))
    for i in range(len(grad)):
        g = grad[i] * scale
        mean[i] = np.float32(0.9) * mean[i] + np.float32(0.1) * g
        square[i] = np.float32(0.999) * square[i] + np.float32(0.001) * g * g
        flat[i] -= rate_now * mean[i] / (np.sqrt(square[i]) * root + np.float32(1e-5))


@njit(cache=True, error_model="numpy")
def prepare(packed: Array, shift: Array, scale: Array, limit: float, agents: Array, identities: int) -> Array:
    """Observations `[R, A, size]` as network inputs: normalised, arranged by stacks, told who they are.

    With one stack the result is `[1, R·A, size + identities]`, else `[A, R, size + identities]`.
    """
    stacks = shift.shape[0]
    rows, count, size = packed.shape
    result = np.zeros((stacks, rows * count // stacks, size + identities), np.float32)
    for r in range(rows):
        for a in range(count):
            s, m = (0, r * count + a) if stacks == 1 else (a, r)
            into = result[s, m]
            for j in range(size):
                into[j] = min(max((packed[r, a, j] - shift[s, j]) * scale[s, j], -limit), limit)
            if identities > 0:
                into[size + agents[a]] = 1
    return result


# Choices ----------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _log_softmax(row: Array, start: int, stop: int, legal: Array, masked: bool) -> None:
    """Turn logits `row[start:stop]` into log-probabilities; illegal ones get −1e9 first."""
    top = np.float32(-np.inf)
    for j in range(start, stop):
        if masked and not legal[j]:
            row[j] = np.float32(-1e9)
        top = max(top, row[j])
    total = np.float32(0)
    for j in range(start, stop):
        total += np.exp(row[j] - top)
    shift = top + np.log(total)
    for j in range(start, stop):
        row[j] -= shift


@njit(cache=True, error_model="numpy")
def _pick(row: Array, start: int, stop: int, u: float, greedy: bool) -> int:
    """A choice by inverse cumulation of exp(row), or the likeliest."""
    best, at = row[start], start
    for j in range(start + 1, stop):
        if row[j] > best:
            best, at = row[j], j
    if greedy:
        return at - start
    total = 0.0
    for j in range(start, stop):
        total += np.exp(float(row[j]))
    left = u * total
    for j in range(start, stop):
        left -= np.exp(float(row[j]))
        if left < 0:
            return j - start
    return at - start  # rounding only: fall back on the likeliest, which is legal


@njit(cache=True, error_model="numpy")
def act(
    flats: Array, sizes: Array, relu: bool, x: Array, mask: Array, choices: Array, uniform: Array, greedy: bool
) -> tuple[Array, Array]:
    """Choose for inputs `x [S, M, in]` with uniforms `[S, M, K]`: actions `[S, M, K]`, log-probabilities `[S, M]`.

    `mask [S, M, outputs]` tells what is legal; an empty one allows everything.
    """
    stacks, rows = x.shape[:2]
    action = np.empty(uniform.shape, np.int64)
    log_prob = np.empty((stacks, rows), np.float32)
    masked = mask.shape[0] > 0
    legal = mask[0, 0] if masked else np.zeros(0, np.bool_)
    store = np.empty(min(rows, BLOCK) * sizes[1:].sum(), np.float32)
    for s in range(stacks):
        for first in range(0, rows, BLOCK):
            block = x[s, first : first + BLOCK]
            out = _forward(flats[s], sizes, relu, block, store)
            for i in range(block.shape[0]):
                m = first + i
                if masked:
                    legal = mask[s, m]
                start = 0
                total = np.float32(0)
                for k in range(len(choices)):
                    stop = start + choices[k]
                    _log_softmax(out[i], start, stop, legal, masked)
                    chosen = _pick(out[i], start, stop, uniform[s, m, k], greedy)
                    action[s, m, k] = chosen
                    total += out[i, start + chosen]
                    start = stop
                log_prob[s, m] = total
    return action, log_prob


@njit(cache=True, error_model="numpy")
def decide(
    flats: Array,
    sizes: Array,
    relu: bool,
    packed: Array,
    shift: Array,
    scale: Array,
    limit: float,
    agents: Array,
    identities: int,
    mask: Array,
    choices: Array,
    uniform: Array,
    greedy: bool,
) -> tuple[Array, Array]:
    """`prepare` and `act` in one call, since a call from Python costs more than four rows of arithmetic."""
    x = prepare(packed, shift, scale, limit, agents, identities)
    return act(flats, sizes, relu, x, mask, choices, uniform, greedy)


@njit(cache=True, error_model="numpy")
def values(flat: Array, sizes: Array, relu: bool, x: Array, result: Array) -> None:
    """Outputs of a network with one output, for rows `x [M, in]`, into `result [M]`."""
    store = np.empty(min(x.shape[0], BLOCK) * sizes[1:].sum(), np.float32)
    for first in range(0, x.shape[0], BLOCK):
        out = _forward(flat, sizes, relu, x[first : first + BLOCK], store)
        for i in range(out.shape[0]):
            result[first + i] = out[i, 0]


# PPO --------------------------------------------------------------------------------------------------


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


class Dials(NamedTuple):
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
    out: Array, rows: Rows, at: Array, share: Array, adv: Array, choices: Array, dials: Dials, sums: Array
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
            _log_softmax(out[i], start, stop, legal, masked)
            log_prob += out[i, start + rows.action[r, k]]
            own[k] = 0
            for j in range(start, stop):
                chance[j] = np.exp(out[i, j])
                own[k] -= chance[j] * out[i, j]
            start = stop
        log_ratio = log_prob - rows.log_prob[r]
        ratio = np.exp(log_ratio)
        near = min(max(ratio, np.float32(1 - dials.clip)), np.float32(1 + dials.clip))
        gain = min(ratio * adv[i], near * adv[i])
        sums[0] -= w * gain
        sums[2] += w * own.sum()
        sums[3] += w * (ratio - 1 - log_ratio)
        sums[4] += w * (abs(ratio - 1) > dials.clip)
        push = -w * ratio * adv[i] if ratio * adv[i] <= near * adv[i] else np.float32(0)
        pull = np.float32(dials.entropy) * w
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


class Pair(NamedTuple):
    """A network's parameters with its optimiser's memory, all `[P]`."""

    flat: Array
    mean: Array
    square: Array


@njit(cache=True, error_model="numpy")
def ppo_pass(
    rows: Rows,
    order: Array,
    bounds: Array,
    specs: tuple[Spec, Spec],
    pairs: tuple[Pair, Pair],
    choices: Array,
    dials: Dials,
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
        shares, advs = _shares(rows, whole, dials.normalize)
        grad[:] = 0
        slope[:] = 0
        for first in range(0, len(whole), BLOCK):
            at, share, adv = whole[first : first + BLOCK], shares[first : first + BLOCK], advs[first : first + BLOCK]
            x = _take(rows.x, at, room)
            out = _forward(mine.flat, actor.sizes, actor.relu, x, store)
            _policy_loss(out, rows, at, share, adv, choices, dials, sums)
            _backward(mine.flat, actor.sizes, actor.relu, x, store, deltas, part, grad)
            x = _take(rows.seen, at, room)
            out = _forward(theirs.flat, critic.sizes, critic.relu, x, store)
            _value_loss(out, rows, at, share, dials.value_clip, sums)
            _backward(theirs.flat, critic.sizes, critic.relu, x, store, deltas, part, slope)
        step += 1
        adam(mine.flat, grad, mine.mean, mine.square, step, dials.rate, dials.limit)
        adam(theirs.flat, slope, theirs.mean, theirs.square, step, dials.critic_rate, dials.limit)
    return sums
