"""Forward and backward passes over packed answers as CUDA graphs.

A small batch keeps a GPU busy for less time than Python needs to launch its kernels. So what is read is padded to one
of a few sizes, and from the second batch of a size on its two passes are replayed: one launch each. Gradients are
added to those of the parameters, as a backward pass does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.types import Array
from coterie.lm.learn.sampling import ALIGNED, LOGITS_AT_ONCE, PackedLayout, read_table, token_log_probs
from coterie.lm.learn.transformer import Transformer

LARGEST = 1 << 15  # tokens; beyond, kernels take longer than their launches
MOST = 32  # sizes that are kept
STEPS = 8  # sizes between a power of two and the next

Size = tuple[int, int, float]  # tokens read, tokens of answers, temperature


class Inputs:
    """The input of a pass, at fixed addresses."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.table = torch.zeros((6, size[0]), dtype=torch.int32, device=device)  # as in `PackedLayout`
        self.rows = torch.zeros((2, size[1]), dtype=torch.int64, device=device)  # sources and targets

    def fill(self, packed: PackedLayout, targets: Array) -> None:
        """Put a batch there."""
        rows = np.zeros(self.rows.shape, np.int64)
        rows[:, : len(targets)] = packed.source, targets
        self.table.copy_(torch.from_numpy(packed.padded(self.table.shape[1])))
        self.rows.copy_(torch.from_numpy(rows))


class Reader(nn.Module):
    """The captured work: log-probabilities of targets, and entropies."""

    def __init__(self, network: Transformer, adapter: int | None, temperature: float) -> None:
        super().__init__()
        self.network, self.adapter, self.temperature = network, adapter, temperature

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        source, targets = inputs.rows
        hidden = read_table(self.network, inputs.table, self.adapter)[source]
        return token_log_probs(self.network, hidden, targets, self.temperature)


class Pass:
    """A forward pass and its backward pass, captured for one size."""

    def __init__(self, reader: Reader, size: Size, pool: Any) -> None:
        device = reader.network.embedding.device
        self.inputs, self.slopes = Inputs(size, device), torch.zeros((2, size[1]), device=device)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, pool=pool):
            found = torch.func.functional_call(reader, _twins(reader), (self.inputs,))
        with torch.cuda.graph(self.backward, pool=pool):
            torch.autograd.backward(found, tuple(self.slopes))
        self.found = tuple(one.detach() for one in found)


def _twins(module: nn.Module) -> dict[str, Tensor]:
    """Leaves with the memory of the parameters and of their gradients, which no earlier pass knows.

    A result of an earlier pass that somebody still holds would tie the capture to that pass's stream.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        found[name] = twin = parameter.detach().requires_grad_(parameter.requires_grad)
        twin.grad = parameter.grad
    return found


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, passes: GraphedPasses, captured: Pass, count: int) -> tuple[Tensor, Tensor]:
        captured.forward.replay()
        passes.replays += 1
        ctx.passes, ctx.captured, ctx.replay = passes, captured, passes.replays
        log_probs, entropy = captured.found
        return log_probs[:count].clone(), entropy[:count].clone()

    @staticmethod
    def backward(ctx: Any, log_prob_slope: Tensor, entropy_slope: Tensor) -> tuple[None, None, None, None]:
        captured = ctx.captured
        if ctx.replay != ctx.passes.replays:
            raise RuntimeError("another batch was read before the gradients of this one were taken")
        slopes = torch.stack([log_prob_slope, entropy_slope])
        captured.slopes.zero_()
        captured.slopes[:, : slopes.shape[1]] = slopes
        captured.backward.replay()
        return None, None, None, None


class GraphedPasses:
    """Passes of one set of weights, a pair of graphs for each size of a batch.

    The parameters keep their gradients' memory: an optimiser must set them to zero in place. Which batches are replayed
    depends on what was read before, and with it the last digits: where PyTorch is to be deterministic, none are.
    """

    def __init__(self, network: Transformer, adapter: int | None, parameters: list[nn.Parameter]) -> None:
        self.network, self.adapter, self.parameters = network, adapter, parameters
        self.captured: dict[Size, Pass] = {}
        self.seen: set[Size] = set()
        self.addresses: list[int] = []  # of weights and gradients, which graphs keep
        self.anchor = torch.zeros((), device=network.embedding.device, requires_grad=True)
        self.pool: Any = None  # memory that all graphs share, since only one batch is at work at a time
        self.replays = 0  # forward passes so far
        self.largest = LARGEST  # tokens of a batch; fewer once a capture has run out of memory

    def read(self, packed: PackedLayout, targets: Array, temperature: float) -> tuple[Tensor, Tensor] | None:
        """Log-probabilities and entropies of the targets; None where a pass of its own is better."""
        size = (_rounded(packed.table.shape[1]), _rounded(len(targets)), temperature)
        if size[0] > self.largest or torch.are_deterministic_algorithms_enabled():
            return None
        if any(parameter.grad is None for parameter in self.parameters):
            return None
        if (addresses := self._addresses()) != self.addresses:
            self.clear()
            self.addresses = addresses
        if size not in self.seen:
            self.seen.add(size)
            return None  # kernels are compiled outside of a capture
        if size not in self.captured and not self._capture(size):
            return None
        captured = self.captured[size]
        captured.inputs.fill(packed, targets)
        found: tuple[Tensor, Tensor] = _Replay.apply(self.anchor, self, captured, len(targets))
        return found

    def clear(self) -> None:
        """Forget all graphs and give their memory back."""
        self.captured.clear()
        self.pool = None

    def _addresses(self) -> list[int]:
        weights = [parameter.data_ptr() for parameter in self.network.parameters()]
        return weights + [parameter.grad.data_ptr() for parameter in self.parameters if parameter.grad is not None]

    def _capture(self, size: Size) -> bool:
        """Capture the passes of a size; whether there is memory for them."""
        if not self._fits(size):
            return False
        if len(self.captured) == MOST:
            self.clear()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            self.captured[size] = Pass(Reader(self.network, self.adapter, size[2]), size, self.pool)
        except torch.OutOfMemoryError:  # what is free may be in pieces, or more than this process may have
            self.clear()
            self.largest = size[0] - 1
            return False
        return True

    def _fits(self, size: Size) -> bool:
        """Whether there is ample memory for what the passes keep."""
        shape = self.network.shape
        layers = size[0] * shape.layers * (16 * shape.width + 8 * shape.hidden)
        logits = min(size[1] * shape.vocabulary, LOGITS_AT_ONCE)
        weights = 2 * sum(parameter.numel() for parameter in self.parameters)  # in this precision, and gradients
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return 2 * (layers + logits + weights) * self.network.compute.itemsize < free


def _rounded(number: int) -> int:
    """The next of the sizes."""
    step = max(ALIGNED, (1 << max(number - 1, 1).bit_length()) // (2 * STEPS))
    return -(-number // step) * step
