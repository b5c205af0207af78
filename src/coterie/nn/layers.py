"""Layers with one set of weights for each parameter set: every parameter has a leading axis S."""

from __future__ import annotations

import math

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
