"""Networks as learners see them: outputs for rows, gradients from the slopes of a loss, and steps of Adam.

An update loop is written once, over the methods of `Net`:

    out = net.forward(rows)                  # [S, M, outputs], for S parameter sets
    net.backward(slopes)                     # of a loss by these outputs; gradients add up
    net.step(learning_rate, max_grad_norm)   # and are 0 again

`CompiledNet` computes perceptrons by the loops of `kernels.py`; `TorchNet` is any PyTorch module on any device. Outputs
and slopes are arrays in main memory; on the CPU those of a module are its tensors' own memory.
"""

from __future__ import annotations

import abc
import operator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.types import Array, State
from coterie.nn import kernels, networks
from coterie.nn.networks import FlatParams, Sequences
from coterie.nn.packing import PixelRows, Rows, map_rows

CHUNK = 8192  # rows that a module reads at once where nothing is learned: enough to be fast, few enough for the cache
CHUNK_NUMBERS = 2**22  # and at most this many numbers: pictures fill the memory
SHAPES = 8  # batch shapes whose arrays are kept: minibatches have two, of lengths that differ by one


class Net(abc.ABC):
    """A network of S parameter sets and its optimiser."""

    module: nn.Module
    flat: FlatParams  # its parameters `[S, P]` and their moments
    rows_at_once: int | None  # rows of a batch that are best learned from together; None: all

    @abc.abstractmethod
    def place(self, rows: Rows) -> Rows:
        """Rows where the network reads them fastest, for many calls of `forward`."""

    @abc.abstractmethod
    def forward(
        self, rows: Rows, items: Array | None = None, sequences: Sequences | None = None, through: int = 0
    ) -> Array:
        """Outputs `[S, M, outputs]` for rows `[S, M, …]`, or for those at `items [S, M]`; keeps what `backward` needs.

        With `sequences` a row is a sequence `[T, …]`, and its outputs follow each other: `[S, M·T, outputs]`.
        `through` says of how many numbers at the end of the rows the slopes will be asked.
        """

    @abc.abstractmethod
    def backward(self, slopes: Array) -> Array | None:
        """Add the gradient of a loss, given by its slopes `[S, M, outputs]` by the latest outputs.

        Returns its slopes `[S, M, through]` by the numbers at the end of the rows, if `forward` was told of any.
        """

    @abc.abstractmethod
    def input_slopes(self, slopes: Array) -> Array:
        """The slopes `[S, M, through]` alone; adds no gradient."""

    @abc.abstractmethod
    def predict(self, rows: Rows, memory: Array | None = None) -> tuple[Array, Array | None]:
        """Outputs `[S, M, outputs]` for any number of rows, and the memory after them; keeps nothing."""

    @abc.abstractmethod
    def step(self, rate: float, limit: float, learning: Array | None = None) -> None:
        """One Adam step of the parameter sets `learning` (None: all), each along its gradient of at most norm `limit`.

        The gradients of all are 0 afterwards.
        """

    def copy_from(self, other: Net, parameter_sets: Array | slice = slice(None)) -> None:
        """Take over weights, of all parameter sets or of some."""
        self.flat.copy_from(other.flat, parameter_sets)

    @abc.abstractmethod
    def move_towards(self, other: Net, share: float) -> None:
        """Move the weights by this share of the way (Polyak averaging)."""

    def weights(self) -> State:
        """Weights by name, as copies."""
        return networks.export(self.module)

    def load_weights(self, arrays: State, what: str) -> None:
        """Write weights back; `what` names the network in errors."""
        networks.restore(self.module, arrays, what)


def make_net(module: nn.Module, compiled: bool = False, flat: FlatParams | None = None) -> Net:
    """A module as learners see it; `compiled` perceptrons are computed by `kernels.py`."""
    flat = FlatParams(module) if flat is None else flat
    if compiled:
        assert isinstance(module, networks.Network)
        return CompiledNet(module, flat)
    return TorchNet(module, [flat])


# Compiled perceptrons ---------------------------------------------------------------------------------


class Workspace(NamedTuple):
    """Arrays for batches of one shape."""

    x: Array  # [S, M, in]
    store: Array  # [S, …]: activations
    out: Array  # [S, M, outputs]
    deltas: Array  # [2, …]: slopes by the outputs of two layers


class CompiledNet(Net):
    """A perceptron without memory, on the CPU."""

    rows_at_once = kernels.BLOCK

    def __init__(self, module: networks.Network, flat: FlatParams) -> None:
        self.module, self.flat = module, flat
        self.sizes, self.relu = module.spec()
        self.params = flat.array
        self.grads = flat.grad.numpy()
        self.part = np.empty(self.params.shape[1], np.float32)
        self.all = np.arange(len(self.params))
        self.shapes: dict[int, Workspace] = {}  # rows -> arrays
        self.work = self.workspace(0)
        self.x = self.work.x  # inputs of the latest outputs
        self.through = 0

    def workspace(self, rows: int) -> Workspace:
        """Arrays for batches of so many rows."""
        found = self.shapes.get(rows)
        if found is None:
            if len(self.shapes) >= SHAPES:
                self.shapes.clear()
            sets, sizes = len(self.params), self.sizes
            found = self.shapes[rows] = Workspace(
                np.empty((sets, rows, sizes[0]), np.float32),
                np.empty((sets, rows * sizes[1:].sum()), np.float32),
                np.empty((sets, rows, sizes[-1]), np.float32),
                np.empty((2, rows * sizes.max()), np.float32),
            )
        return found

    def place(self, rows: Rows) -> Rows:
        return np.ascontiguousarray(rows, np.float32)

    def forward(
        self, rows: Rows, items: Array | None = None, sequences: Sequences | None = None, through: int = 0
    ) -> Array:
        self.through = through
        if items is None:
            self.work = work = self.workspace(rows.shape[1])
            self.x = rows
            kernels.forward_sets(self.params, self.sizes, self.relu, rows, work.store, work.out)
        else:
            self.work = work = self.workspace(items.shape[1])
            self.x = work.x
            kernels.forward_rows(self.params, self.sizes, self.relu, rows, items, work.x, work.store, work.out)
        return work.out

    def backward(self, slopes: Array) -> Array | None:
        work = self.work
        kernels.backward_sets(
            self.params, self.sizes, self.relu, self.x, work.store, slopes, work.deltas, self.part, self.grads
        )
        return self.input_slopes(slopes) if self.through else None

    def input_slopes(self, slopes: Array) -> Array:
        work = self.work
        result = np.empty((*slopes.shape[:2], self.through), np.float32)
        kernels.input_slopes_sets(self.params, self.sizes, self.relu, self.x, work.store, slopes, work.deltas, result)
        return result

    def predict(self, rows: Rows, memory: Array | None = None) -> tuple[Array, Array | None]:
        out = np.empty((*rows.shape[:2], self.sizes[-1]), np.float32)
        kernels.predict_sets(self.params, self.sizes, self.relu, rows, out)
        return out, None

    def step(self, rate: float, limit: float, learning: Array | None = None) -> None:
        flat = self.flat
        kernels.step_sets(
            self.params, self.grads, flat.mean, flat.square, flat.steps, self.all if learning is None else learning,
            flat.learned, rate, limit,
        )  # fmt: skip

    def move_towards(self, other: Net, share: float) -> None:
        kernels.move_towards(self.params, other.flat.array, share)


# PyTorch modules --------------------------------------------------------------------------------------


class TorchNet(Net):
    """A PyTorch module; PyTorch differentiates it."""

    rows_at_once = None

    def __init__(self, module: nn.Module, flats: list[FlatParams]) -> None:
        """`flats` are its parameters, in parts that may learn at different rates."""
        self.module, self.flats, self.flat = module, flats, flats[0]
        self.device = self.flat.parameters[0].device
        self.out: Tensor | None = None  # the latest outputs
        self.tail: Tensor | None = None  # the numbers at the end of their rows

    def place(self, rows: Rows) -> Rows:
        return map_rows(self._tensor, rows)

    def _tensor(self, values: Any) -> Any:
        """An array as a tensor on the network's device; texts stay as they are."""
        texts = isinstance(values, np.ndarray) and values.dtype.kind == "U"
        return values if texts else torch.as_tensor(values, device=self.device)

    def forward(
        self, rows: Rows, items: Array | None = None, sequences: Sequences | None = None, through: int = 0
    ) -> Array:
        if items is not None:
            rows = map_rows(lambda values: pick(values, items), rows)
            sequences = sequences and Sequences(*(pick(values, items) for values in sequences))
        rows, self.tail = self.place(rows), None
        if through:
            self.tail = rows[..., -through:].detach().requires_grad_()
            rows = torch.cat([rows[..., :-through], self.tail], dim=-1)
        self.out = self.module.unroll(rows, sequences)  # type: ignore[operator]  # what every network here has
        assert self.out is not None
        return self.out.detach().cpu().numpy()

    def backward(self, slopes: Array) -> Array | None:
        assert self.out is not None
        networks.backward([self.out], [slopes])
        return None if self.tail is None or self.tail.grad is None else self.tail.grad.cpu().numpy()

    def input_slopes(self, slopes: Array) -> Array:
        assert self.out is not None
        assert self.tail is not None
        (found,) = torch.autograd.grad([self.out], [self.tail], [torch.as_tensor(slopes, device=self.device)])
        return found.cpu().numpy()

    @torch.no_grad()
    def predict(self, rows: Rows, memory: Array | None = None) -> tuple[Array, Array | None]:
        lead = rows.image if isinstance(rows, PixelRows) else rows
        held = None if memory is None else self._tensor(memory)
        chunk = max(min(CHUNK, CHUNK_NUMBERS // max(lead.shape[-1], 1)), 1)
        parts, after = list[Array](), list[Array]()
        for first in range(0, max(lead.shape[1], 1), chunk):
            cut = operator.itemgetter((slice(None), slice(first, first + chunk)))
            out, new = self.module(self.place(map_rows(cut, rows)), None if held is None else cut(held))
            parts.append(out.cpu().numpy())
            if new is not None:
                after.append(new.cpu().numpy())
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return joined, np.concatenate(after, axis=1) if after else None

    def step(self, rate: float, limit: float, learning: Array | None = None) -> None:
        self.step_parts([rate] * len(self.flats), limit, learning)

    def step_parts(self, rates: list[float], limit: float, learning: Array | None = None) -> None:
        """`step` with a rate for each part of the parameters; each has a gradient of its own norm."""
        for flat, rate in zip(self.flats, rates, strict=True):
            flat.step(rate, limit, learning)
        networks.clear_gradients(self.flats)

    def move_towards(self, other: Net, share: float) -> None:
        self.flat.move_towards(other.flat, share)


def pick(values: Any, items: Array) -> Any:
    """Values `[S, M, …]` at `items [S, K]`: an array, or a tensor of any device."""
    if len(items) > 1:
        return values[np.arange(len(items))[:, None], items]
    if isinstance(values, Tensor):  # copies whole rows, which is faster than indexing
        return values[0].index_select(0, torch.as_tensor(items[0], device=values.device))[None]
    return values[0][items[0]][None]
