"""Layers with one set of weights for each parameter set: every parameter has a leading axis S."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.core.validation import fits_in_memory


class Dense(nn.Module):
    """A linear layer per parameter set: `[S, M, inputs] -> [S, M, outputs]`."""

    def __init__(self, inputs: int, outputs: int, gain: float, generators: list[torch.Generator]) -> None:
        super().__init__()
        # weights, gradients, and the two moments of Adam, 4 bytes each
        size = 16.0 * len(generators) * (inputs + 1) * outputs
        fits_in_memory(f"a layer of {inputs:,} inputs and {outputs:,} outputs", size, "choose fewer units or actions")
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


class Embedding(nn.Module):
    """A vector for each choice and parameter set, or the sum of one for each of its digits.

    Rows are numbers `[S, M, 1]`, or one-hot `[S, M, sum(sizes)]` as `packing.pack` makes them.
    """

    def __init__(self, sizes: Sequence[int], outputs: int, generators: list[torch.Generator]) -> None:
        super().__init__()
        count = sum(sizes)
        size = 16.0 * len(generators) * count * outputs
        fits_in_memory(f"{count:,} embeddings of {outputs:,} numbers", size, "choose fewer units")
        self.weight = nn.Parameter(torch.stack([torch.randn(count, outputs, generator=g) for g in generators]))
        self.sizes, self.outputs = tuple(sizes), outputs

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return torch.bmm(x, self.weight)
        left, start, parts = x[..., 0].long(), 0, []
        for size in self.sizes:
            parts.append(self.look_up(start + (left % size if len(self.sizes) > 1 else left)))
            left, start = left // size, start + size
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    def look_up(self, chosen: Tensor) -> Tensor:
        """The vectors `[S, M, outputs]` of rows of the table `[S, M]`."""
        if len(self.weight) == 1:  # a plain look-up is faster
            return nn.functional.embedding(chosen, self.weight[0])
        return torch.take_along_dim(self.weight, chosen.unsqueeze(-1), dim=1)


class Convolution(nn.Module):
    """A convolution over images `[M, S·C, H, W]`; parameter sets run as groups of one convolution."""

    def __init__(
        self, inputs: int, outputs: int, side: int, generators: list[torch.Generator], stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.side, self.stride, self.padding = side, stride, padding
        kernel = torch.empty(len(generators), outputs, inputs, side, side)
        for one, generator in zip(kernel, generators, strict=True):
            nn.init.orthogonal_(one, math.sqrt(2), generator=generator)
        self.kernel = nn.Parameter(kernel)
        self.bias = nn.Parameter(torch.zeros(len(generators), outputs))

    def forward(self, x: Tensor) -> Tensor:
        kernel, bias = self.kernel.flatten(0, 1), self.bias.flatten()
        return torch.conv2d(x, kernel, bias, self.stride, self.padding, groups=len(self.kernel))

    def reduced(self, length: int) -> int:
        """The height or width that it makes of one."""
        return (length + 2 * self.padding - self.side) // self.stride + 1
