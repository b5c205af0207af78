"""Encoders of pictures: 3×3 convolutions for small ones, and the Nature and IMPALA networks for large ones.

They read rows `[S, M, C·H·W]` of floats, or of bytes, which they divide by 255: pictures stay bytes until here.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.nn.layers import Convolution, Dense

ImageEncoder = Literal["cnn", "nature", "impala"]
Image = tuple[int, int, int]  # channels, height, width
SMALL = 32  # up to this height and width, `auto` takes 3×3 convolutions
NATURE_SIDE = 36  # the smallest height and width that leave something of a picture after Nature's strides


def choose_image_encoder(image: Image) -> ImageEncoder:
    """The encoder that `auto` stands for: nature for large pictures, impala for those too narrow for it, else cnn."""
    if max(image[1:]) <= SMALL:
        return "cnn"
    return "nature" if min(image[1:]) >= NATURE_SIDE else "impala"


def make_image_encoder(
    name: ImageEncoder, image: Image, channels: tuple[int, ...], generators: list[torch.Generator]
) -> Convolutions | Nature | Impala:
    """An encoder of pictures by its name; `channels` are those of `cnn`."""
    match name:
        case "cnn":
            return Convolutions(image, channels, generators)
        case "nature":
            return Nature(image, generators)
        case "impala":
            return Impala(image, generators)


def planes(x: Tensor, image: Image) -> Tensor:
    """Rows `[S, M, C·H·W]` as floats `[M, S·C, H, W]`; bytes become fractions of 255."""
    return as_floats(x.view(*x.shape[:2], *image).transpose(0, 1).flatten(1, 2))


def as_floats(x: Tensor) -> Tensor:
    """Bytes as fractions of 255; converting first is five times faster than dividing bytes."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def fast_planes(x: Tensor, image: Image) -> Tensor:
    """The same, with channels last in memory where that is faster: one parameter set on the CPU."""
    if len(x) > 1 or x.device.type != "cpu":
        return planes(x, image)
    return as_floats(x[0].view(-1, *image).contiguous(memory_format=torch.channels_last))


def flatten_features(x: Tensor, parameter_sets: int) -> Tensor:
    """`[M, S·C, H, W]` as rows `[S, M, C·H·W]`."""
    return x.reshape(x.shape[0], parameter_sets, -1).transpose(0, 1)


class Convolutions(nn.Module):
    """3×3 convolutions over an image; parameter sets run as groups of one convolution."""

    def __init__(self, image: Image, channels: tuple[int, ...], generators: list[torch.Generator]) -> None:
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
        parameter_sets = len(x)
        x = planes(x, self.image)
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = torch.relu(torch.conv2d(x, kernel.flatten(0, 1), bias.flatten(), padding=1, groups=parameter_sets))
        return flatten_features(x, parameter_sets)


class Nature(nn.Module):
    """Three strided convolutions and a layer of 512 units (Mnih et al. 2015, Methods, "Model architecture")."""

    outputs = 512

    def __init__(self, image: Image, generators: list[torch.Generator]) -> None:
        super().__init__()
        channels, height, width = image
        if min(height, width) < NATURE_SIDE:
            raise ValueError(
                f"encoder 'nature' needs pictures of at least {NATURE_SIDE}×{NATURE_SIDE} pixels, got "
                f"{height}×{width}; set encoder=impala or encoder=cnn"
            )
        self.image = image
        self.convolutions = nn.ModuleList()
        for outputs, side, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layer = Convolution(channels, outputs, side, generators, stride)
            self.convolutions.append(layer)
            channels, height, width = outputs, layer.reduced(height), layer.reduced(width)
        self.dense = Dense(channels * height * width, self.outputs, math.sqrt(2), generators)

    def forward(self, x: Tensor) -> Tensor:
        parameter_sets = len(x)
        x = fast_planes(x, self.image)
        for layer in self.convolutions:
            x = torch.relu_(layer(x))
        return torch.relu_(self.dense(flatten_features(x, parameter_sets)))


class Residual(nn.Module):
    """Adds to an image what two 3×3 convolutions make of it."""

    def __init__(self, channels: int, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.first, self.second = (Convolution(channels, channels, 3, generators, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + added


class Impala(nn.Module):
    """Fifteen convolutions with residual connections, and a layer of 256 units (Espeholt et al. 2018, figure 3)."""

    outputs = 256

    def __init__(self, image: Image, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.image = image
        channels, height, width = image
        self.sections = nn.ModuleList()
        for outputs in (16, 32, 32):
            layers = [Convolution(channels, outputs, 3, generators, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            self.sections.append(nn.Sequential(*layers, *(Residual(outputs, generators) for _ in range(2))))
            channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.dense = Dense(channels * height * width, self.outputs, math.sqrt(2), generators)

    def forward(self, x: Tensor) -> Tensor:
        parameter_sets = len(x)
        x = fast_planes(x, self.image)
        for section in self.sections:
            x = section(x)
        return torch.relu(self.dense(flatten_features(torch.relu(x), parameter_sets)))
