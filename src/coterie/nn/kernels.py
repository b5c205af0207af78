"""Small networks as compiled loops: forward, backward, Adam, and the actions and slopes of distributions.

A two-layer perceptron of width 64 spends most of its time in PyTorch's bookkeeping. These functions do the same
arithmetic (tests hold them equal to autograd within 1e-5) on the same flat parameters. They serve perceptrons;
everything else goes through autograd, and both use `adam`. Parameters are laid out as in `networks.FlatParams`: for
every layer the weights `[inputs, outputs]`, then the biases. An algorithm's losses are in its own package.
"""

from __future__ import annotations

import importlib.util
import math
from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.nn.launch import kernel
from coterie.nn.log_probs import HALF_LOG_2PI, LOG_STD_HIGH, LOG_STD_LOW, log_softmax

BLOCK = 512  # rows that a forward pass takes at once, so that activations stay in the cache
NO_MASK = np.zeros((0, 0, 0), np.bool_)
LOG_2 = math.log(2)
FAST = {"contract", "arcp", "nsz", "reassoc"}  # reorder sums, but keep NaN and infinity as they are


def available() -> bool:
    """Whether matrix products can be compiled: Numba takes them from SciPy."""
    return importlib.util.find_spec("scipy") is not None


class Spec(NamedTuple):
    """A perceptron: widths from input to output, and the activation of its hidden layers."""

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
def forward(flat: Array, sizes: Array, relu: bool, x: Array, store: Array) -> Array:
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
def backward(
    flat: Array, sizes: Array, relu: bool, x: Array, store: Array, deltas: Array, part: Array, grad: Array
) -> None:
    """Add the gradient of everything that `forward` used, given the loss's gradient in place of its outputs.

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
def backward_inputs(flat: Array, sizes: Array, relu: bool, x: Array, store: Array, deltas: Array) -> Array:
    """The gradient of the inputs `[M, in]` alone, given the loss's gradient in place of `forward`'s outputs.

    It lies in `deltas`, which has room for two layers' gradients.
    """
    rows, at, kept, turn = x.shape[0], len(flat), 0, 0
    for layer in range(1, len(sizes) - 1):
        kept += rows * sizes[layer]
    delta = store[kept : kept + rows * sizes[-1]].reshape(rows, sizes[-1])
    for layer in range(len(sizes) - 2, -1, -1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        at -= inputs * outputs + outputs
        weight = flat[at : at + inputs * outputs].reshape(inputs, outputs)
        before = deltas[turn, : rows * inputs].reshape(rows, inputs)
        np.dot(delta, weight.T, before)
        if layer > 0:
            kept -= rows * inputs
            _through(before, store[kept : kept + rows * inputs].reshape(rows, inputs), relu)
        delta, turn = before, 1 - turn
    return delta


@njit(cache=True, error_model="numpy")
def adam(flat: Array, grad: Array, mean: Array, square: Array, step: int, rate: float, limit: float) -> None:
    """One Adam step (Kingma & Ba 2015, algorithm 1) along a gradient scaled to at most `limit`, all `[P]`."""
    first = second = third = fourth = 0.0  # four sums at once: one waits four times as long for each addition
    whole = len(grad) - len(grad) % 4
    for i in range(0, whole, 4):
        first += float(grad[i]) * float(grad[i])
        second += float(grad[i + 1]) * float(grad[i + 1])
        third += float(grad[i + 2]) * float(grad[i + 2])
        fourth += float(grad[i + 3]) * float(grad[i + 3])
    for i in range(whole, len(grad)):
        first += float(grad[i]) * float(grad[i])
    total = (first + second) + (third + fourth)
    scale = np.float32(min(1.0, limit / (np.sqrt(total) + 1e-6)))
    rate_now = np.float32(rate / (1 - 0.9**step))
    root = np.float32(1 / np.sqrt(1 - 0.999**step))
    for i in range(len(grad)):
        g = grad[i] * scale
        mean[i] = np.float32(0.9) * mean[i] + np.float32(0.1) * g
        square[i] = np.float32(0.999) * square[i] + np.float32(0.001) * g * g
        flat[i] -= rate_now * mean[i] / (np.sqrt(square[i]) * root + np.float32(1e-5))


# Parameter sets ---------------------------------------------------------------------------------------
# A network of S parameter sets is trained by these loops over them (`nets.CompiledNet`).


@njit(cache=True, error_model="numpy")
def forward_rows(
    flats: Array, sizes: Array, relu: bool, rows: Array, items: Array, x: Array, store: Array, out: Array
) -> None:
    """Outputs `[S, M, out]` for the rows `items [S, M]` of `rows [S, N, in]`.

    The inputs are copied to `x [S, M, in]`; hidden activations stay in `store [S, …]`.
    """
    for s in range(len(flats)):
        for m in range(items.shape[1]):
            row = rows[s, items[s, m]]
            for j in range(row.shape[0]):
                x[s, m, j] = row[j]
    forward_sets(flats, sizes, relu, x, store, out)


@njit(cache=True, error_model="numpy")
def forward_sets(flats: Array, sizes: Array, relu: bool, x: Array, store: Array, out: Array) -> None:
    """Outputs `[S, M, out]` for inputs `[S, M, in]`; hidden activations stay in `store [S, …]`."""
    for s in range(len(flats)):
        found = forward(flats[s], sizes, relu, x[s], store[s])
        for m in range(found.shape[0]):
            for j in range(found.shape[1]):
                out[s, m, j] = found[m, j]


@njit(cache=True, error_model="numpy")
def place_slopes(store: Array, slopes: Array) -> None:
    """Put slopes `[M, out]` in the place of the outputs that `forward` left in `store`."""
    rows, width = slopes.shape
    kept = len(store) - rows * width
    for m in range(rows):
        for j in range(width):
            store[kept + m * width + j] = slopes[m, j]


@njit(cache=True, error_model="numpy")
def backward_sets(
    flats: Array,
    sizes: Array,
    relu: bool,
    x: Array,
    store: Array,
    slopes: Array,
    deltas: Array,
    part: Array,
    grads: Array,
) -> None:
    """Add gradients to `grads [S, P]`, of losses with slopes `[S, M, out]` by the outputs of the last forward pass."""
    for s in range(len(flats)):
        place_slopes(store[s], slopes[s])
        backward(flats[s], sizes, relu, x[s], store[s], deltas, part, grads[s])


@njit(cache=True, error_model="numpy")
def input_slopes_sets(
    flats: Array, sizes: Array, relu: bool, x: Array, store: Array, slopes: Array, deltas: Array, result: Array
) -> None:
    """The slopes `[S, M, K]` of the losses by the last K inputs."""
    for s in range(len(flats)):
        place_slopes(store[s], slopes[s])
        found = backward_inputs(flats[s], sizes, relu, x[s], store[s], deltas)
        first = found.shape[1] - result.shape[2]
        for m in range(found.shape[0]):
            for j in range(result.shape[2]):
                result[s, m, j] = found[m, first + j]


@njit(cache=True, error_model="numpy")
def step_sets(
    flats: Array,
    grads: Array,
    means: Array,
    squares: Array,
    steps: Array,
    learning: Array,
    learned: Array,
    rate: float,
    limit: float,
) -> None:
    """One Adam step of the parameter sets `learning`, of all parameters or of `learned [P]`; gradients are 0 then."""
    for s in learning:
        for j in range(len(learned)):
            if not learned[j]:
                grads[s, j] = 0
        steps[s] += 1
        adam(flats[s], grads[s], means[s], squares[s], steps[s], rate, limit)
    grads[:] = 0


@njit(cache=True, error_model="numpy")
def move_towards(flats: Array, others: Array, share: float) -> None:
    """Move parameters `[S, P]` by this share of the way towards others."""
    for s in range(flats.shape[0]):
        for j in range(flats.shape[1]):
            flats[s, j] += np.float32(share) * (others[s, j] - flats[s, j])


@njit(cache=True, error_model="numpy")
def predict_sets(flats: Array, sizes: Array, relu: bool, x: Array, out: Array) -> None:
    """Outputs `[S, M, out]` for any number of inputs `[S, M, in]`, of which nothing is kept."""
    rows = x.shape[1]
    store = np.empty(min(rows, BLOCK) * sizes[1:].sum(), np.float32)
    for s in range(len(flats)):
        for first in range(0, rows, BLOCK):
            found = forward(flats[s], sizes, relu, x[s, first : first + BLOCK], store)
            for m in range(found.shape[0]):
                for j in range(found.shape[1]):
                    out[s, first + m, j] = found[m, j]


# Choices ----------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def prepare(packed: Array, shift: Array, scale: Array, limit: float, agents: Array, identities: int) -> Array:
    """Observations `[R, A, size]` as network inputs: normalised, arranged by parameter sets, with one-hot identities.

    With one parameter set the result is `[1, R·A, size + identities]`, else `[A, R, size + identities]`.
    """
    parameter_sets = shift.shape[0]
    rows, count, size = packed.shape
    result = np.zeros((parameter_sets, rows * count // parameter_sets, size + identities), np.float32)
    for r in range(rows):
        for a in range(count):
            s, m = (0, r * count + a) if parameter_sets == 1 else (a, r)
            into = result[s, m]
            for j in range(size):
                into[j] = min(max((packed[r, a, j] - shift[s, j]) * scale[s, j], -limit), limit)
            if identities > 0:
                into[size + agents[a]] = 1
    return result


class OptimizedParams(NamedTuple):
    """A network's parameters with its optimiser's moments, all `[P]`."""

    flat: Array
    mean: Array
    square: Array


@njit(cache=True, error_model="numpy")
def _pick(row: Array, start: int, stop: int, u: float, greedy: bool) -> int:
    """A choice drawn with probability exp(row), by inverse cumulation, or the likeliest."""
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

    `mask [S, M, outputs]` says what is legal; an empty one allows everything.
    """
    parameter_sets, rows = x.shape[:2]
    action = np.empty(uniform.shape, np.int64)
    log_prob = np.empty((parameter_sets, rows), np.float32)
    masked = mask.shape[0] > 0
    legal = np.zeros((1, 0), np.bool_)
    store = np.empty(min(rows, BLOCK) * sizes[1:].sum(), np.float32)
    for s in range(parameter_sets):
        if masked:
            legal = mask[s]
        for first in range(0, rows, BLOCK):
            block = x[s, first : first + BLOCK]
            out = forward(flats[s], sizes, relu, block, store)
            for i in range(block.shape[0]):
                m = first + i
                start = 0
                total = np.float32(0)
                for k in range(len(choices)):
                    stop = start + choices[k]
                    log_softmax(out, i, start, stop, legal, m)
                    chosen = _pick(out[i], start, stop, uniform[s, m, k], greedy)
                    action[s, m, k] = chosen
                    total += out[i, start + chosen]
                    start = stop
                log_prob[s, m] = total
    return action, log_prob


class PolicyInputs(NamedTuple):
    """A group's network and its observations, for decisions in one compiled call."""

    flats: Array  # [S, P]
    sizes: Array  # as in Spec
    relu: bool
    packed: Array  # [N, A, size]: observations
    shift: Array  # [S, size]: how they are normalised
    scale: Array  # [S, size]
    limit: float
    agents: Array  # [A] int64: which of the group's agents decide
    identities: int  # length of the one-hot identities


@njit(cache=True, error_model="numpy")
def decide(
    inputs: PolicyInputs,
    mask: Array,
    choices: Array,
    uniform: Array,
    greedy: bool,
) -> tuple[Array, Array]:
    """`prepare` and `act` in one call, since a call from Python costs more than four rows of arithmetic."""
    x = prepare(inputs.packed, inputs.shift, inputs.scale, inputs.limit, inputs.agents, inputs.identities)
    return act(inputs.flats, inputs.sizes, inputs.relu, x, mask, choices, uniform, greedy)


@njit(cache=True, error_model="numpy")
def squash(out: np.float32, clipped: bool) -> np.float32:
    """Squash an output to [−1, 1]."""
    return min(max(out, np.float32(-1)), np.float32(1)) if clipped else np.tanh(out)


@njit(cache=True, error_model="numpy")
def decide_bounded(
    inputs: PolicyInputs,
    clipped: bool,
    noise: Array,
) -> Array:
    """Outputs squashed to [−1, 1] by tanh or clipping, plus noise `[S, M, K]`, clipped again: `[S, M, K]`."""
    x = prepare(inputs.packed, inputs.shift, inputs.scale, inputs.limit, inputs.agents, inputs.identities)
    parameter_sets, rows = x.shape[:2]
    found = np.empty(noise.shape, np.float32)
    store = np.empty(min(rows, BLOCK) * inputs.sizes[1:].sum(), np.float32)
    for s in range(parameter_sets):
        for first in range(0, rows, BLOCK):
            out = forward(inputs.flats[s], inputs.sizes, inputs.relu, x[s, first : first + BLOCK], store)
            for i in range(out.shape[0]):
                for k in range(out.shape[1]):
                    moved = squash(out[i, k], clipped) + noise[s, first + i, k]
                    found[s, first + i, k] = min(max(moved, np.float32(-1)), np.float32(1))
    return found


# Squashed Gaussians -----------------------------------------------------------------------------------


@kernel
def sample_squashed(m: int, out: Array, noise: Array, action: Array, log_prob: Array) -> None:
    """Actions tanh(mean + std · noise) in [−1, 1] and their log-densities there, for outputs `[M, 2K]`.

    Outputs are the K means, then the K logarithms of deviations, which are clipped. The density is that of the change
    of variables (Haarnoja et al. 2018, appendix C), log N(z) − Σ log(1 − tanh² z), in a form that stays finite.
    """
    width, total = noise.shape[1], np.float32(0)
    for k in range(width):
        log_std = min(max(out[m, width + k], np.float32(LOG_STD_LOW)), np.float32(LOG_STD_HIGH))
        z = out[m, k] + math.exp(log_std) * noise[m, k]
        action[m, k] = math.tanh(z)
        softplus = max(-2 * z, np.float32(0)) + math.log1p(math.exp(-abs(2 * z)))  # of −2z
        total -= np.float32(0.5) * noise[m, k] * noise[m, k] + log_std + np.float32(HALF_LOG_2PI)
        total -= 2 * (np.float32(LOG_2) - z - softplus)
    log_prob[m] = total


@kernel
def squashed_slopes(
    m: int, out: Array, noise: Array, action: Array, action_slope: Array, log_prob_slope: Array, slopes: Array
) -> None:
    """A loss's slopes by outputs `[M, 2K]`, from those by actions `[M, K]` and by log-densities `[M]`.

    `action` is what `sample_squashed` found. Outside their bounds the logarithms of deviations have no slope.
    """
    width = noise.shape[1]
    for k in range(width):
        log_std, point = out[m, width + k], action[m, k]
        by_z = action_slope[m, k] * (np.float32(1) - point * point) + log_prob_slope[m] * 2 * point
        slopes[m, k] = by_z
        slopes[m, width + k] = 0
        if LOG_STD_LOW <= log_std <= LOG_STD_HIGH:
            slopes[m, width + k] = by_z * math.exp(log_std) * noise[m, k] - log_prob_slope[m]


@njit(cache=True, error_model="numpy")
def decide_squashed(inputs: PolicyInputs, noise: Array) -> tuple[Array, Array]:
    """`prepare`, `forward` and `sample_squashed` in one call: actions `[S, M, K]` and log-densities `[S, M]`."""
    x = prepare(inputs.packed, inputs.shift, inputs.scale, inputs.limit, inputs.agents, inputs.identities)
    parameter_sets, rows = x.shape[:2]
    action, log_prob = np.empty(noise.shape, np.float32), np.empty((parameter_sets, rows), np.float32)
    store = np.empty(min(rows, BLOCK) * inputs.sizes[1:].sum(), np.float32)
    for s in range(parameter_sets):
        for a in range(0, rows, BLOCK):
            b = min(a + BLOCK, rows)
            out = forward(inputs.flats[s], inputs.sizes, inputs.relu, x[s, a:b], store)
            for m in range(b - a):
                sample_squashed(m, out, noise[s, a:b], action[s, a:b], log_prob[s, a:b])
    return action, log_prob


# Action values ----------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def best_of(row: Array, first: int, legal: Array, masked: bool) -> int:
    """The legal action of highest value, the first of several; action j is at `row[first + j]`."""
    at = -1
    for j in range(len(row) - first):
        if (not masked or legal[j]) and (at < 0 or row[first + j] > row[first + at]):
            at = j
    return max(at, 0)


@njit(cache=True, error_model="numpy")
def epsilon_greedy(
    values: Array, first: int, mask: Array, uniform: Array, epsilon: float, action: Array, log_prob: Array
) -> None:
    """With probability ε any legal action, else the best, into `action [M]` and `log_prob [M]`.

    `values [M, first + actions]`, `uniform [M, 2]`; an empty `mask` allows everything.
    """
    actions, masked = values.shape[1] - first, mask.shape[0] > 0
    legal = mask[0] if masked else np.zeros(0, np.bool_)
    for i in range(values.shape[0]):
        if masked:
            legal = mask[i]
        allowed = 0
        for j in range(actions):
            allowed += not masked or legal[j]
        allowed = max(allowed, 1)
        chosen = best = best_of(values[i], first, legal, masked)
        if uniform[i, 0] < epsilon:
            left = int(uniform[i, 1] * allowed)
            for j in range(actions):
                if not masked or legal[j]:
                    if left == 0:
                        chosen = j
                    left -= 1
        action[i] = chosen
        log_prob[i] = np.log(epsilon / allowed + (1 - epsilon if chosen == best else 0.0))


@njit(cache=True, error_model="numpy")
def decide_by_value(
    inputs: PolicyInputs,
    first: int,
    mask: Array,
    uniform: Array,
    epsilon: float,
) -> tuple[Array, Array]:
    """`prepare`, `forward` and `epsilon_greedy` in one call: actions and log-probabilities `[S, M]`."""
    x = prepare(inputs.packed, inputs.shift, inputs.scale, inputs.limit, inputs.agents, inputs.identities)
    parameter_sets, rows = x.shape[:2]
    action, log_prob = np.empty((parameter_sets, rows), np.int64), np.empty((parameter_sets, rows), np.float32)
    store = np.empty(min(rows, BLOCK) * inputs.sizes[1:].sum(), np.float32)
    legal = np.zeros((0, 0), np.bool_)
    for s in range(parameter_sets):
        for a in range(0, rows, BLOCK):
            b = min(a + BLOCK, rows)
            out = forward(inputs.flats[s], inputs.sizes, inputs.relu, x[s, a:b], store)
            if mask.shape[0] > 0:
                legal = mask[s, a:b]
            epsilon_greedy(out, first, legal, uniform[s, a:b], epsilon, action[s, a:b], log_prob[s, a:b])
    return action, log_prob


@njit(cache=True, error_model="numpy")
def unsquash(slope: np.float32, out: np.float32, point: np.float32, clipped: bool) -> np.float32:
    """An output's gradient from that of its squashed point; outside the bounds only inward gradients pass."""
    if not clipped:
        return slope * (np.float32(1) - point * point)
    outwards = (out > 1 and slope < 0) or (out < -1 and slope > 0)
    return np.float32(0) if outwards else slope
