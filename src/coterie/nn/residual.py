"""A residual tower with a policy head and a value head, for boards (Silver et al. 2017, "Neural network architecture").

Departures from the paper: there is no batch normalisation. The second convolution of every block starts at zero, so
that the tower starts as the identity and deep ones train as well (Zhang et al. 2019), and a position's evaluation does
not depend on the others in its batch. The planes of the heads have no ReLU: the tower's features are positive, so that
without normalisation one plane has nearly the same sign everywhere, and with some seeds it would be, and stay, 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """x + conv(relu(conv(x))), then relu."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, math.sqrt(2), generator)
        self.second = convolution(channels, channels, 3, 0.0, generator)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.second(functional.relu(self.first(x))))


class ResidualTower(nn.Module):
    """Planes `[B, C·H·W]` to the logits of all actions and a value before its tanh, `[B, actions + 1]`."""

    def __init__(
        self, planes: tuple[int, int, int], actions: int, channels: int, blocks: int, value_width: int, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.planes = planes
        cells = planes[1] * planes[2]
        self.stem = convolution(planes[0], channels, 3, math.sqrt(2), generator)
        self.blocks = nn.Sequential(*(Block(channels, generator) for _ in range(blocks)))
        self.policy_planes = convolution(channels, 2, 1, math.sqrt(2), generator)
        self.policy = linear(2 * cells, actions, 0.1, generator)
        self.value_planes = convolution(channels, 1, 1, math.sqrt(2), generator)
        self.value_hidden = linear(cells, value_width, math.sqrt(2), generator)
        self.value = linear(value_width, 1, 0.1, generator)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(functional.relu(self.stem(x.view(len(x), *self.planes))))
        policy = self.policy(self.policy_planes(h).flatten(1))
        value = functional.relu(self.value_hidden(self.value_planes(h).flatten(1)))
        return torch.cat([policy, self.value(value)], dim=1)


def convolution(inputs: int, outputs: int, size: int, gain: float, generator: torch.Generator) -> nn.Conv2d:
    """A convolution that keeps height and width, with normal weights of deviation gain / √fan-in."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2)
    _init(layer, inputs * size * size, gain, generator)
    return layer


def linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """A dense layer, likewise."""
    layer = nn.Linear(inputs, outputs)
    _init(layer, inputs, gain, generator)
    return layer


def _init(layer: nn.Conv2d | nn.Linear, fan_in: int, gain: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * (gain / math.sqrt(fan_in)))
        assert layer.bias is not None
        layer.bias.zero_()
