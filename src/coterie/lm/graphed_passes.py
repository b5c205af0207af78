"""Forward and backward passes over packed answers as CUDA graphs.

A small batch keeps a GPU busy for less time than Python needs to launch its kernels. So what is read is padded to one
of a few sizes, and from the second batch of a size on its two passes are replayed: one launch each. Gradients are
added to those of the parameters, as a backward pass does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.types import Array
from coterie.lm.sampling import PackedLayout, token_log_probs
from coterie.lm.transformer import Spans, Transformer

log = logging.getLogger(__name__)
LARGEST = 1 << 15  # tokens; beyond, kernels take longer than their launches
MOST = 32  # sizes that are kept
STEPS = 8  # sizes between a power of two and the next

Size = tuple[int, int, float]  # tokens read, tokens of answers, temperature


@dataclass
class Inputs:
    """What a pass reads, at fixed addresses."""

    tokens: Tensor  # [N] int64
    position: Tensor  # [N] int64
    spans: Spans  # [N] int32 each
    source: Tensor  # [M] int64
    targets: Tensor  # [M] int64

    @classmethod
    def new(cls, size: Size, device: torch.device) -> Inputs:
        """Room for a size, filled as if nothing were read."""
        read, written, _ = size
        at = torch.arange(read, device=device)
        spans = Spans(*(at.to(torch.int32) + (name == "last") for name in Spans._fields))  # a token sees itself
        table = torch.zeros((2, read), dtype=torch.int64, device=device)
        rows = torch.zeros((2, written), dtype=torch.int64, device=device)
        return cls(table[0], table[1], spans, rows[0], rows[1])

    def fill(self, packed: PackedLayout, targets: Array) -> None:
        """Put a batch there; beyond it, tokens that see themselves and that nobody asks for."""
        alone = np.arange(len(packed.tokens), len(self.tokens))
        into = (self.tokens, self.position, *self.spans)
        beyond = (0 * alone, 0 * alone, alone, alone, alone, alone + 1)
        for there, array, rest in zip(into, (*packed[:2], *packed[3:]), beyond, strict=True):
            there.copy_(torch.from_numpy(np.concatenate([array, rest])))
        for there, array in ((self.source, packed.source), (self.targets, targets)):
            rest = np.zeros(len(there) - len(array), np.int64)
            there.copy_(torch.from_numpy(np.concatenate([array, rest])))


class Pass:
    """A forward pass and its backward pass, captured for one size."""

    def __init__(self, network: Transformer, adapter: int | None, size: Size, pool: Any) -> None:
        device = network.embedding.device
        self.inputs = inputs = Inputs.new(size, device)
        self.slopes = torch.zeros((2, size[1]), device=device)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, pool=pool):
            hidden = network(inputs.tokens[None], adapter, inputs.position[None], mask=inputs.spans)[0]
            found = token_log_probs(network, hidden[inputs.source], inputs.targets, size[2])
        with torch.cuda.graph(self.backward, pool=pool):
            torch.autograd.backward(found, tuple(self.slopes))
        self.found = tuple(one.detach() for one in found)
        self.replays = 0


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, captured: Pass, count: int) -> tuple[Tensor, Tensor]:
        captured.forward.replay()
        captured.replays += 1
        ctx.captured, ctx.replay = captured, captured.replays
        log_probs, entropy = captured.found
        return log_probs[:count].clone(), entropy[:count].clone()

    @staticmethod
    def backward(ctx: Any, log_prob_slope: Tensor, entropy_slope: Tensor) -> tuple[None, None, None]:
        captured = ctx.captured
        if ctx.replay != captured.replays:
            raise RuntimeError("another batch was read before the gradients of this one were taken")
        slopes = torch.stack([log_prob_slope, entropy_slope])
        captured.slopes.zero_()
        captured.slopes[:, : slopes.shape[1]] = slopes
        captured.backward.replay()
        return None, None, None


class GraphedPasses:
    """Passes of one set of weights, a pair of graphs for each size of a batch.

    The parameters keep their gradients' memory: an optimiser must set them to zero in place.
    """

    def __init__(self, network: Transformer, adapter: int | None, parameters: list[nn.Parameter]) -> None:
        self.network, self.adapter, self.parameters = network, adapter, parameters
        self.captured: dict[Size, Pass] = {}
        self.seen: set[Size] = set()
        self.addresses: list[int] = []  # of weights and gradients, which graphs keep
        self.anchor = torch.zeros((), device=network.embedding.device, requires_grad=True)
        self.pool: Any = None

    def read(self, packed: PackedLayout, targets: Array, temperature: float) -> tuple[Tensor, Tensor] | None:
        """Log-probabilities and entropies of the targets; None where a pass of its own is better."""
        size = (_rounded(len(packed.tokens)), _rounded(len(targets)), temperature)
        if size[0] > LARGEST or any(parameter.grad is None for parameter in self.parameters):
            return None
        if (addresses := self._addresses()) != self.addresses:
            self.clear()
            self.addresses = addresses
        if size not in self.captured:
            if size not in self.seen or not self._fits(size):
                self.seen.add(size)
                return None  # kernels are compiled outside of a capture
            self._capture(size)
        captured = self.captured[size]
        captured.inputs.fill(packed, targets)
        found: tuple[Tensor, Tensor] = _Replay.apply(self.anchor, captured, len(targets))
        return found

    def clear(self) -> None:
        """Forget all graphs and give their memory back."""
        self.captured.clear()
        self.pool = None

    def _addresses(self) -> list[int]:
        weights = [parameter.data_ptr() for parameter in self.network.parameters()]
        return weights + [parameter.grad.data_ptr() for parameter in self.parameters if parameter.grad is not None]

    def _capture(self, size: Size) -> None:
        if len(self.captured) == MOST:
            self.clear()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        gradients = [parameter.grad for parameter in self.parameters]
        self.captured[size] = Pass(self.network, self.adapter, size, self.pool)
        assert all(parameter.grad is held for parameter, held in zip(self.parameters, gradients, strict=True))

    def _fits(self, size: Size) -> bool:
        """Whether there is ample memory for what the passes keep."""
        shape = self.network.shape
        kept = size[0] * shape.layers * (16 * shape.width + 8 * shape.hidden) * self.network.compute.itemsize
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return 2 * kept < free


def _rounded(number: int) -> int:
    """The next of the sizes."""
    step = max(64, (1 << max(number - 1, 1).bit_length()) // (2 * STEPS))
    return -(-number // step) * step
