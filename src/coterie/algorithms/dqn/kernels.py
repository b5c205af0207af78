"""DQN's gradient steps as one compiled loop, for perceptrons without a mixer.

It does what `DQN.autograd_steps` does, with the same loss (`losses.py`), on the same flat parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.algorithms.dqn.losses import margin_loss, td_loss
from coterie.algorithms.dqn.transitions import Transitions
from coterie.algorithms.replay import SMALL, draw, set_leaves
from coterie.core.types import Array
from coterie.nn.kernels import OptimizedParams, Spec, adam, backward, best_of, forward


class Normalization(NamedTuple):
    """Normalisation of observations, and the number of one-hot identities that follow them."""

    shift: Array  # [D]
    scale: Array  # [D]
    limit: float
    identities: int


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    learning_rate: float
    max_grad_norm: float
    huber: float  # beyond this error the loss is linear; infinity: never
    double: bool
    dueling: bool
    tau: float  # fraction of the way that a soft target moves at every step; 0: hard updates
    interval: int  # steps between hard updates
    priority: float  # exponents
    importance: float
    margin: float  # by which advised actions must exceed others
    advice: float  # weight of the margin loss; 0: there is none


@njit(cache=True, error_model="numpy")
def _inputs(observation: Array, agent: Array, index: Array, normalization: Normalization, x: Array) -> None:
    """Write rows `[index]` of the replay as network inputs into `x`."""
    size = observation.shape[2]
    shift, scale, limit, identities = normalization
    for i in range(len(index)):
        row = observation[index[i], 0]
        for j in range(size):
            x[i, j] = min(max((row[j] - shift[j]) * scale[j], -limit), limit)
        for j in range(identities):
            x[i, size + j] = 0
        if identities > 0:
            x[i, size + agent[index[i]]] = 1


@njit(cache=True, error_model="numpy")
def _value(out: Array, action: int, dueling: bool) -> float:
    """An action's value from a row of outputs (Wang et al. 2016, eq. 9, when dueling)."""
    if not dueling:
        return out[action]
    mean = np.float32(0)
    for j in range(1, len(out)):
        mean += out[j]
    return out[0] + out[1 + action] - mean / np.float32(len(out) - 1)


@njit(cache=True, error_model="numpy")
def _targets(
    rows: Transitions,
    index: Array,
    x: Array,
    spec: Spec,
    flat: Array,
    target: Array,
    store: Array,
    hyperparams: Hyperparams,
) -> Array:
    """Targets of the values (Mnih et al. 2015, algorithm 1; double: van Hasselt et al. 2016, eq. 4)."""
    first = 1 if hyperparams.dueling else 0
    best = np.empty(len(index), np.int64)
    result = np.empty(len(index), np.float32)
    out = forward(flat if hyperparams.double else target, spec.sizes, spec.relu, x, store)
    for i in range(len(index)):
        best[i] = best_of(out[i], first, rows.next_mask[index[i], 0], True)
    if hyperparams.double:
        out = forward(target, spec.sizes, spec.relu, x, store)
    for i in range(len(index)):
        r = index[i]
        result[i] = rows.reward[r]
        if rows.discount[r] > 0:  # the row after an end may hold anything
            result[i] += rows.discount[r] * _value(out[i], best[i], hyperparams.dueling)
    return result


@njit(cache=True, error_model="numpy")
def _slopes(
    out: Array,
    rows: Transitions,
    index: Array,
    weight: Array,
    target: Array,
    hyperparams: Hyperparams,
    error: Array,
    sums: Array,
) -> None:
    """Replace outputs by the slopes of the mean weighted loss; write errors and add to `sums`."""
    count, advice = np.float32(len(index)), np.float32(hyperparams.advice)
    values = np.empty(out.shape[1] - (1 if hyperparams.dueling else 0), np.float32)
    for i in range(len(index)):
        action, advised = rows.action[index[i], 0], rows.advised[index[i], 0]
        close = advised
        if advice > 0 and advised >= 0:
            for j in range(len(values)):
                values[j] = _value(out[i], j, hyperparams.dueling)
            above, close = margin_loss(values, rows.mask[index[i], 0], advised, np.float32(hyperparams.margin))
            sums[3] += weight[i] * above / count
        value = _value(out[i], action, hyperparams.dueling)
        error[i], loss, slope = td_loss(value, target[i], weight[i], count, hyperparams.huber)
        sums[0] += weight[i] * loss / count
        sums[1] += value / count
        sums[2] += abs(error[i]) / count
        if hyperparams.dueling:
            actions = out.shape[1] - 1
            out[i, 0] = slope
            for j in range(actions):
                out[i, 1 + j] = -slope / np.float32(actions)
            out[i, 1 + action] += slope
        else:
            for j in range(out.shape[1]):
                out[i, j] = 0
            out[i, action] = slope
        if close != advised:  # both slopes add up to 0, so the value of a dueling network's state has none
            first = 1 if hyperparams.dueling else 0
            out[i, first + close] += weight[i] * advice / count
            out[i, first + advised] -= weight[i] * advice / count


@njit(cache=True, error_model="numpy")
def _keep_streams_apart(grad: Array, sizes: Array) -> None:
    """Set the gradient of output weights between the two streams of a dueling network to 0."""
    inputs, outputs = sizes[-2], sizes[-1]
    start = len(grad) - outputs - inputs * outputs
    weight = grad[start : start + inputs * outputs].reshape(inputs, outputs)
    half = inputs // 2
    for i in range(inputs):
        for j in range(outputs):
            if (i < half) != (j == 0):
                weight[i, j] = 0


@njit(cache=True, error_model="numpy")
def dqn_steps(
    rows: Transitions,
    nodes: Array,
    size: int,
    uniform: Array,
    normalization: Normalization,
    spec: Spec,
    network: OptimizedParams,
    target: Array,
    hyperparams: Hyperparams,
    done: int,
    learns: Array,
) -> tuple[Array, float]:
    """One gradient step for each row of `uniform [steps, B]`, in place; `done` counts those taken before.

    `learns [P]` says which parameters learn; empty: all. Adam measures the gradients of the others all the same.

    Returns the sums over steps of (loss, mean value, mean absolute error, margin loss), and the highest priority set.
    """
    batch, flat = uniform.shape[1], network.flat
    index, weight = np.empty(batch, np.int64), np.empty(batch, np.float32)
    x, store = np.empty((batch, spec.sizes[0]), np.float32), np.empty(batch * spec.sizes[1:].sum(), np.float32)
    deltas = np.empty((2, batch * spec.sizes.max()), np.float32)
    part, grad = np.empty(len(flat), np.float32), np.empty(len(flat), np.float32)
    error, priority = np.empty(batch, np.float32), np.empty(batch)
    sums, top, before = np.zeros(4), 0.0, flat[: len(learns)].copy()
    for step in range(len(uniform)):
        draw(nodes, size, uniform[step], hyperparams.importance, index, weight)
        _inputs(rows.next_obs, rows.agent, index, normalization, x)
        targets = _targets(rows, index, x, spec, flat, target, store, hyperparams)
        _inputs(rows.observation, rows.agent, index, normalization, x)
        out = forward(flat, spec.sizes, spec.relu, x, store)
        _slopes(out, rows, index, weight, targets, hyperparams, error, sums)
        grad[:] = 0
        backward(flat, spec.sizes, spec.relu, x, store, deltas, part, grad)
        if hyperparams.dueling:
            _keep_streams_apart(grad, spec.sizes)
        taken = done + step + 1
        adam(flat, grad, network.mean, network.square, taken, hyperparams.learning_rate, hyperparams.max_grad_norm)
        for j in range(len(learns)):
            if not learns[j]:
                flat[j], network.mean[j] = before[j], 0
        if len(nodes):
            for i in range(batch):
                top = max(top, abs(error[i]))
                priority[i] = (float(abs(error[i])) + SMALL) ** hyperparams.priority
            set_leaves(nodes, index, priority)
        if hyperparams.tau > 0:
            for i in range(len(target)):
                target[i] += np.float32(hyperparams.tau) * (flat[i] - target[i])
        elif taken % hyperparams.interval == 0:
            for i in range(len(target)):
                target[i] = flat[i]
    return sums, top
