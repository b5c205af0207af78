"""Networks over packed observations, for one set of parameters or several stacked side by side.

Every observation is packed into one row of floats; a `Layout` remembers what lies where. Every parameter
has a leading axis S: one for a shared network, one per agent for individual ones, so that a group of
individual policies costs one batched product. Recurrent networks are not here yet.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coterie.types import Array, Box, Dict, Discrete, ObservationSpace, Tree

Encoder = Literal["auto", "mlp", "set", "cnn"]


class Entry(NamedTuple):
    """One named part of a packed observation."""

    start: int
    stop: int
    shape: tuple[int, ...]
    space: Box | Discrete


@dataclass(frozen=True)
class Layout:
    """How an observation lies in one row of floats."""

    entries: dict[str, Entry]
    sets: tuple[tuple[str, ...], ...]
    size: int
    slots: Array  # [size] which running mean each number belongs to; rows of a set share theirs
    width: int  # how many running means there are, those of empty sets included
    bare: bool  # the observation is a single array, not a dict

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height, width when the whole observation is a picture."""
        first = next(iter(self.entries.values()))
        return first.shape if self.bare and len(first.shape) == 3 else None


def layout(space: ObservationSpace) -> Layout:
    """Lay out a space in one row."""
    spaces = space.entries if isinstance(space, Dict) else {"": space}
    sets = space.sets if isinstance(space, Dict) else ()
    members = {name for names in sets for name in names}
    entries, slots, start, slot = {}, [], 0, 0
    for name, part in spaces.items():
        shape = (part.n,) if isinstance(part, Discrete) else part.shape
        size = math.prod(shape)
        width = math.prod(shape[1:]) if name in members else size
        entries[name] = Entry(start, start + size, shape, part)
        slots.append(slot + np.arange(size) % max(width, 1))
        start, slot = start + size, slot + width
    return Layout(entries, sets, start, np.concatenate(slots), slot, not isinstance(space, Dict))


def pack(lay: Layout, observation: Tree) -> Array:
    """Write observations `[…, shape]` as rows of floats `[…, size]`; bytes become fractions of 255."""
    parts = []
    for name, entry in lay.entries.items():
        array = np.asarray(observation if lay.bare else observation[name])
        if isinstance(entry.space, Discrete):
            parts.append(np.eye(entry.space.n, dtype=np.float32)[array])
            continue
        lead = array.shape[: array.ndim - len(entry.shape)]
        flat = array.reshape(*lead, entry.stop - entry.start)
        parts.append(flat / np.float32(255) if flat.dtype == np.uint8 else flat.astype(np.float32, copy=False))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


class Dense(nn.Module):
    """A linear layer per stack: `[S, M, inputs] -> [S, M, outputs]`."""

    def __init__(self, inputs: int, outputs: int, gain: float, generators: list[torch.Generator]) -> None:
        super().__init__()
        weight = torch.empty(len(generators), inputs, outputs)
        for matrix, generator in zip(weight, generators, strict=True):
            if inputs:
                nn.init.orthogonal_(matrix, gain, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(len(generators), 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[0] == 1:  # a plain product is faster than a batched one of one
            return torch.addmm(self.bias[0], x[0], self.weight[0]).unsqueeze(0)
        return torch.baddbmm(self.bias, x, self.weight)


class Perceptron(nn.Module):
    """Dense layers, each followed by the activation."""

    def __init__(self, sizes: list[int], activation: str, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Dense(a, b, math.sqrt(2), generators) for a, b in itertools.pairwise(sizes))
        self.activate = {"tanh": torch.tanh, "relu": torch.relu}[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activate(layer(x))
        return x


class Convolutions(nn.Module):
    """3×3 convolutions over a picture; individual stacks run as groups of one convolution."""

    def __init__(
        self, image: tuple[int, int, int], channels: tuple[int, ...], generators: list[torch.Generator]
    ) -> None:
        super().__init__()
        self.image = image
        sizes = (image[0], *channels)
        self.kernels = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in itertools.pairwise(sizes):
            kernel = torch.empty(len(generators), outputs, inputs, 3, 3)
            for one, generator in zip(kernel, generators, strict=True):
                nn.init.orthogonal_(one, math.sqrt(2), generator=generator)
            self.kernels.append(nn.Parameter(kernel))
            self.biases.append(nn.Parameter(torch.zeros(len(generators), outputs)))
        self.outputs = sizes[-1] * image[1] * image[2]

    def forward(self, x: Tensor) -> Tensor:
        stacks, rows = x.shape[:2]
        x = x.view(stacks, rows, *self.image).transpose(0, 1).flatten(1, 2)  # [M, S·C, H, W]
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = torch.relu(torch.conv2d(x, kernel.flatten(0, 1), bias.flatten(), padding=1, groups=stacks))
        return x.reshape(rows, stacks, self.outputs).transpose(0, 1)


class SetEncoder(nn.Module):
    """Reads each set of like things by one small network and pools: any number of things will do.

    Every thing is embedded together with the agent's own features, then mean and maximum over the set are
    taken (Zaheer et al. 2017, Deep Sets, eq. 4).
    """

    def __init__(self, lay: Layout, width: int, activation: str, generators: list[torch.Generator]) -> None:
        super().__init__()
        members = {name for names in lay.sets for name in names}
        self.lay, self.width = lay, width
        self.own = [entry for name, entry in lay.entries.items() if name not in members]
        own = sum(entry.stop - entry.start for entry in self.own)
        self.readers = nn.ModuleList()
        for names in lay.sets:
            features = sum(math.prod(lay.entries[name].shape[1:]) for name in names)
            self.readers.append(Perceptron([features + own, width, width], activation, generators))
        self.outputs = own + 2 * width * len(lay.sets)

    def forward(self, x: Tensor) -> Tensor:
        stacks, rows = x.shape[:2]
        own = torch.cat([x[..., :0], *(x[..., entry.start : entry.stop] for entry in self.own)], dim=-1)
        parts = [own]
        for names, reader in zip(self.lay.sets, self.readers, strict=True):
            entries = [self.lay.entries[name] for name in names]
            count = entries[0].shape[0]
            if count == 0:  # nobody else is here
                parts.append(x.new_zeros(stacks, rows, 2 * self.width))
                continue
            things = [x[..., e.start : e.stop].reshape(stacks, rows, count, -1) for e in entries]
            things.append(own.unsqueeze(2).expand(-1, -1, count, -1))
            read = reader(torch.cat(things, dim=-1).flatten(1, 2)).view(stacks, rows, count, -1)
            parts += [read.mean(dim=2), read.amax(dim=2)]
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True)
class Shape:
    """What a network is made of; one for the actor, one for the critic, equal but for the last layer."""

    hidden: tuple[int, ...]
    activation: str
    encoder: Encoder
    channels: tuple[int, ...]
    identities: int  # agents to tell apart by a one-hot input; 0 = none


def choose_encoder(encoder: Encoder, lay: Layout) -> Literal["mlp", "set", "cnn"]:
    """Settle `auto`, and refuse an encoder that the observation does not suit."""
    if encoder == "auto":
        return "cnn" if lay.image else "mlp"
    if encoder == "cnn" and not lay.image:
        raise ValueError("encoder 'cnn' needs a picture [channels, height, width] as the observation")
    if encoder == "set" and not lay.sets:
        raise ValueError("encoder 'set' needs a dict observation that declares sets (gridworld: observation: dict)")
    return encoder


class Net(nn.Module):
    """Encoder, hidden layers and an output layer: `[S, M, size] -> [S, M, outputs]`."""

    def __init__(self, shape: Shape, lay: Layout, outputs: int, gain: float, seeds: list[int]) -> None:
        super().__init__()
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        encoder = choose_encoder(shape.encoder, lay)
        self.encode: nn.Module | None = None
        inputs = lay.size
        if encoder == "cnn" and lay.image:
            self.encode = Convolutions(lay.image, shape.channels, generators)
            inputs = self.encode.outputs
        elif encoder == "set":
            self.encode = SetEncoder(lay, shape.hidden[0], shape.activation, generators)
            inputs = self.encode.outputs
        self.identities = shape.identities
        self.body = Perceptron([inputs + shape.identities, *shape.hidden], shape.activation, generators)
        self.out = Dense(shape.hidden[-1], outputs, gain, generators)

    def forward(self, x: Tensor, agents: Tensor) -> Tensor:
        """Rows `x` and, where the network is told, which agent each row belongs to `[S, M]`."""
        if self.encode is not None:
            x = self.encode(x)
        if self.identities:
            x = torch.cat([x, nn.functional.one_hot(agents, self.identities).to(x.dtype)], dim=-1)
        return self.out(self.body(x))


class Flat:
    """A network's parameters and gradients as one matrix `[S, P]` each, which its tensors are views of."""

    def __init__(self, net: nn.Module) -> None:
        parameters = list(net.parameters())
        stacks = parameters[0].shape[0]
        total = sum(p.numel() // stacks for p in parameters)
        self.value = torch.empty(stacks, total)
        self.grad = torch.zeros(stacks, total)
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel() // stacks
            self.value[:, start:stop] = parameter.data.reshape(stacks, -1)
            parameter.data = self.value[:, start:stop].view(parameter.shape)
            parameter.grad = self.grad[:, start:stop].view(parameter.shape)
            start = stop
        self.value.grad = self.grad

    def clip_gradient(self, limit: float) -> Tensor:
        """Scale each stack's gradient to at most `limit` and return the norms `[S]` before that."""
        norms = self.grad.norm(dim=1)
        self.grad *= (limit / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1)
        return norms


def export(net: nn.Module) -> dict[str, Array]:
    """Parameters by name, as copies."""
    return {name: p.detach().numpy().copy() for name, p in net.named_parameters()}


def restore(net: nn.Module, arrays: dict[str, Array], what: str) -> None:
    """Write parameters back in place; a shape that differs is an error which says where."""
    parameters = dict(net.named_parameters())
    for name in arrays:
        if name not in parameters:
            raise ValueError(f"{what}: the saved weights have '{name}', which is not here")
    for name, parameter in parameters.items():
        if name not in arrays:
            raise ValueError(f"{what}: the saved weights have no '{name}'")
        if arrays[name].shape != tuple(parameter.shape):
            raise ValueError(
                f"{what}: '{name}' is {arrays[name].shape} in the saved weights, {tuple(parameter.shape)} here"
            )
        parameter.data.copy_(torch.from_numpy(arrays[name]))
