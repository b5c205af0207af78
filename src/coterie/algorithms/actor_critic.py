"""Parts shared by off-policy actor-critics: target networks, inputs and weights of a batch, compiled Adam steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from coterie.algorithms.joint_transitions import JointTransitions
from coterie.core.types import Array, State
from coterie.nn import networks
from coterie.nn.kernels import Spec, adam, backward
from coterie.nn.packing import Layout


class NetworkArrays(NamedTuple):
    """A network's parameters, their Adam moments and the target network's parameters, all `[S, P]`."""

    params: Array
    mean: Array
    square: Array
    target: Array


class Gradients(NamedTuple):
    """Arrays for gradients, with room for the largest of several networks."""

    deltas: Array  # [2, …]: of two layers' outputs
    part: Array  # of one layer's weights
    grad: Array  # of all parameters


class RowScaling(NamedTuple):
    """Normalisation of the policy's inputs, and the number of one-hot identities that follow them."""

    shift: Array  # [S, D]
    scale: Array  # [S, D]
    limit: float
    identities: int


@njit(cache=True, error_model="numpy")
def policy_rows(observation: Array, index: Array, first: int, scaling: RowScaling, s: int, x: Array) -> None:
    """Write the policy's inputs: normalised observations and identities.

    Rows of parameter set s are `m = i · per + p` for row i of the batch and agent `s + p`; the group's observations
    begin at `first`.
    """
    per, size = x.shape[0] // len(index), scaling.shift.shape[1]
    for i in range(len(index)):
        for p in range(per):
            a, into = s + p, x[i * per + p]
            row = observation[index[i], first + a * size : first + (a + 1) * size]
            for j in range(size):
                scaled = (row[j] - scaling.shift[s, j]) * scaling.scale[s, j]
                into[j] = min(max(scaled, -scaling.limit), scaling.limit)
            for j in range(scaling.identities):
                into[size + j] = 1 if j == a else 0


@njit(cache=True, error_model="numpy")
def gather_outcomes(
    rows: JointTransitions, index: Array, s: int, reward: Array, discount: Array, weight: Array
) -> None:
    """Write rewards, discounts and weights `[M]` of a parameter set's decisions; weights of valid ones sum to 1."""
    per, valid = len(reward) // len(index), 0
    for i in range(len(index)):
        for p in range(per):
            m, r, a = i * per + p, index[i], s + p
            reward[m], discount[m] = rows.reward[r, a], rows.discount[r, a]
            valid += rows.valid[r, a]
    for i in range(len(index)):
        for p in range(per):
            weight[i * per + p] = rows.valid[index[i], s + p] / max(valid, 1)


@njit(cache=True, error_model="numpy")
def make_gradients(rows: int, first: Spec, second: Spec) -> Gradients:
    """Room for batches of this many rows, for networks of two shapes."""
    most = 0
    for sizes in (first.sizes, second.sizes):
        count = 0
        for layer in range(len(sizes) - 1):
            count += sizes[layer] * sizes[layer + 1] + sizes[layer + 1]
        most = max(most, count)
    widest = max(first.sizes.max(), second.sizes.max())
    deltas = np.empty((2, rows * widest), np.float32)
    return Gradients(deltas, np.empty(most, np.float32), np.empty(most, np.float32))


@njit(cache=True, error_model="numpy")
def adam_step(
    net: NetworkArrays,
    s: int,
    spec: Spec,
    x: Array,
    store: Array,
    gradients: Gradients,
    step: int,
    rate: float,
    limit: float,
) -> None:
    """One Adam step of parameter set s along the slopes that replace the outputs in `store`; `x` are the inputs."""
    grad = gradients.grad[: net.params.shape[1]]
    grad[:] = 0
    backward(net.params[s], spec.sizes, spec.relu, x, store, gradients.deltas, gradients.part, grad)
    adam(net.params[s], grad, net.mean[s], net.square[s], step, rate, limit)


@njit(cache=True, error_model="numpy")
def move_target(net: NetworkArrays, tau: float) -> None:
    """Move the target network by the fraction `tau` of the way."""
    for s in range(net.params.shape[0]):
        for j in range(net.params.shape[1]):
            net.target[s, j] += np.float32(tau) * (net.params[s, j] - net.target[s, j])


class NetworkWithTarget:
    """A network and its target network, which follows it slowly."""

    def __init__(self, net: networks.Network, flat: networks.FlatParams, target: networks.Network) -> None:
        self.net, self.flat, self.target, self.target_flat = net, flat, target, networks.FlatParams(target)
        self.target_flat.copy_from(flat)

    @classmethod
    def critic(
        cls, shape: networks.Shape, layout: Layout, outputs: int, seeds: list[int], device: torch.device
    ) -> NetworkWithTarget:
        """A critic with its first weights, and an equal target network."""
        net, target = (networks.Network(shape, layout, outputs, 1.0, seeds).to(device) for _ in range(2))
        return cls(net, networks.FlatParams(net), target)

    @property
    def steps(self) -> int:
        """Adam steps taken: all parameter sets learn together."""
        return int(self.flat.steps[0])

    def move_target(self, tau: float) -> None:
        """Move the target network by the fraction `tau` of the way."""
        self.target_flat.move_towards(self.flat, tau)

    def arrays(self) -> NetworkArrays:
        """All arrays, for the compiled path."""
        return NetworkArrays(self.flat.array, self.flat.mean, self.flat.square, self.target_flat.array)

    def state(self) -> State:
        return {"net": networks.export(self.net), "target": networks.export(self.target), "adam": self.flat.state()}

    def load(self, state: State, what: str) -> None:
        networks.restore(self.net, state["net"], what)
        networks.restore(self.target, state["target"], f"{what}, target")
        self.flat.load(state["adam"])


def weights_of(valid: Array, parameter_sets: int) -> Array:
    """Weights `[B, A]` of decisions in the mean over their parameter set; those of valid ones sum to 1."""
    count = valid.sum(axis=0, keepdims=True) if parameter_sets > 1 else valid.sum()
    weight: Array = (valid / np.maximum(count, 1)).astype(np.float32)
    return weight


def to_array(tensor: Tensor) -> Array:
    """A copy in main memory."""
    return tensor.detach().cpu().numpy().copy()
