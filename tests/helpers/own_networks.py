"""Modules of a user's own that read observations."""

import numpy as np
import torch
from torch import nn


class Features(nn.Module):
    """Reads vectors and pictures: a layer with a norm."""

    def __init__(self, shape) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 7), nn.LayerNorm(7), nn.Tanh())

    def forward(self, observation):
        return self.read(observation)


class Parts(nn.Module):
    """Reads dict observations."""

    def __init__(self, shapes) -> None:
        super().__init__()
        self.own = nn.Linear(shapes["own"][0], 3)
        self.others = nn.Linear(shapes["others"][1], 4)

    def forward(self, observation):
        others = self.others(observation["others"]).amax(dim=1)
        return torch.cat([self.own(observation["own"]), others, observation["level"]], dim=-1).relu()


class Unseeded(Features):
    """Draws its weights from the system."""

    def __init__(self, shape) -> None:
        super().__init__(shape)
        weight = np.random.default_rng().standard_normal((7, int(np.prod(shape))))
        self.read[1].weight.data = torch.from_numpy(weight).float()


class Normed(nn.Module):
    """Has running statistics."""

    def __init__(self, shape) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4))

    def forward(self, observation):
        return self.read(observation)


class Scalar(Features):
    """Says one number for all rows."""

    def forward(self, observation):
        return self.read(observation).sum()


class Constant(nn.Module):
    """Learns nothing."""

    def __init__(self, shape) -> None:
        super().__init__()

    def forward(self, observation):
        return observation


def number(shape):
    """No module at all."""
    return 3
