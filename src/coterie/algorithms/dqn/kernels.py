"""DQN's gradient steps as one compiled loop, for perceptrons whose members are valued one by one.

The twin of `DQN.autograd_steps`, on the same flat parameters and with the same numbers (within 1e-5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.algorithms.dqn.transitions import Transitions
from coterie.algorithms.replay import SMALL, draw, set_leaves
from coterie.core.types import Array
from coterie.nn.kernels import Pair, Spec, adam, backward, best_of, forward


class Normal(NamedTuple):
    """How observations become inputs."""

    shift: Array  # [D]
    scale: Array  # [D]
    limit: float
    identities: int


class Hyperparams(NamedTuple):
    """The numbers of one iteration."""

    rate: float
    limit: float  # of the gradient's norm
    huber: float  # beyond this error the loss is linear; infinity: never
    double: bool
    dueling: bool
    soft: float  # share of the way that the target moves at every step; 0: it jumps
    period: int  # steps between jumps
    priority: float  # exponents
    importance: float


@njit(cache=True, error_model="numpy")
def _read(observation: Array, agent: Array, index: Array, normal: Normal, x: Array) -> None:
    """Rows `[index]` of the replay as inputs."""
    size = observation.shape[2]
    for i in range(len(index)):
        row = observation[index[i], 0]
        for j in range(size):
            x[i, j] = min(max((row[j] - normal.shift[j]) * normal.scale[j], -normal.limit), normal.limit)
        for j in range(normal.identities):
            x[i, size + j] = 0
        if normal.identities > 0:
            x[i, size + agent[index[i]]] = 1


@njit(cache=True, error_model="numpy")
def _value(out: Array, action: int, dueling: bool) -> float:
    """An action's value from a row of outputs (Wang et al. 2016, eq. 9)."""
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
    """What the values should be (Mnih et al. 2015; double: van Hasselt et al. 2016, eq. 4)."""
    first = 1 if hyperparams.dueling else 0
    best = np.empty(len(index), np.int64)
    result = np.empty(len(index), np.float32)
    out = forward(flat if hyperparams.double else target, spec.sizes, spec.relu, x, store)
    for i in range(len(index)):
        best[i] = best_of(out[i], first, rows.mask[index[i], 0], True)
    if hyperparams.double:
        out = forward(target, spec.sizes, spec.relu, x, store)
    for i in range(len(index)):
        r = index[i]
        result[i] = rows.reward[r]
        if rows.discount[r] > 0:  # what follows an end may be anything
            result[i] += rows.discount[r] * _value(out[i], best[i], hyperparams.dueling)
    return result


@njit(cache=True, error_model="numpy")
def _loss(
    out: Array,
    rows: Transitions,
    index: Array,
    weight: Array,
    target: Array,
    hyperparams: Hyperparams,
    error: Array,
    sums: Array,
) -> None:
    """Turn outputs into the gradient of the mean weighted Huber loss, in place."""
    count = np.float32(len(index))
    for i in range(len(index)):
        action = rows.action[index[i], 0]
        value = _value(out[i], action, hyperparams.dueling)
        error[i] = value - target[i]
        size = abs(error[i])
        bend = min(size, hyperparams.huber)
        sums[0] += weight[i] * bend * (size - 0.5 * bend) / count
        sums[1] += value / count
        sums[2] += size / count
        slope = np.float32(weight[i] * bend * np.sign(error[i]) / count)
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


@njit(cache=True, error_model="numpy")
def _keep_streams_apart(grad: Array, sizes: Array) -> None:
    """Clear the gradient of output weights that would join the two streams of a dueling network."""
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
    normal: Normal,
    spec: Spec,
    pair: Pair,
    target: Array,
    hyperparams: Hyperparams,
    done: int,
) -> tuple[Array, float]:
    """One gradient step for each row of `uniform [steps, B]`, in place; `done` counts those taken before.

    Returns the sums over steps of (loss, mean value, mean absolute error), and the highest priority set.
    """
    batch, first = uniform.shape[1], spec.sizes[0]
    index, weight = np.empty(batch, np.int64), np.empty(batch, np.float32)
    x, store = np.empty((batch, first), np.float32), np.empty(batch * spec.sizes[1:].sum(), np.float32)
    deltas = np.empty((2, batch * spec.sizes.max()), np.float32)
    part, grad = np.empty(len(pair.flat), np.float32), np.empty(len(pair.flat), np.float32)
    error, priority = np.empty(batch, np.float32), np.empty(batch)
    sums, top = np.zeros(3), 0.0
    for step in range(len(uniform)):
        draw(nodes, size, uniform[step], hyperparams.importance, index, weight)
        _read(rows.following, rows.agent, index, normal, x)
        aim = _targets(rows, index, x, spec, pair.flat, target, store, hyperparams)
        _read(rows.observation, rows.agent, index, normal, x)
        out = forward(pair.flat, spec.sizes, spec.relu, x, store)
        _loss(out, rows, index, weight, aim, hyperparams, error, sums)
        grad[:] = 0
        backward(pair.flat, spec.sizes, spec.relu, x, store, deltas, part, grad)
        if hyperparams.dueling:
            _keep_streams_apart(grad, spec.sizes)
        adam(pair.flat, grad, pair.mean, pair.square, done + step + 1, hyperparams.rate, hyperparams.limit)
        if len(nodes):
            for i in range(batch):
                top = max(top, abs(error[i]))
                priority[i] = (float(abs(error[i])) + SMALL) ** hyperparams.priority
            set_leaves(nodes, index, priority)
        if hyperparams.soft > 0:
            for i in range(len(target)):
                target[i] += np.float32(hyperparams.soft) * (pair.flat[i] - target[i])
        elif (done + step + 1) % hyperparams.period == 0:
            for i in range(len(target)):
                target[i] = pair.flat[i]
    return sums, top
