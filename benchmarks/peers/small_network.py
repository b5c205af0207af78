"""The perceptron 84 – width – width – 8 that the Python searches call, with random weights, by NumPy or by PyTorch."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np


def small_network(kind: str, width: int, random: Any) -> Callable[[Any], Any]:
    """A function from 84 numbers to 7 logits and a value before its tanh; one position per call."""
    sizes = [84, width, width, 8]
    weights = [random.normal(0, 1 / np.sqrt(a), (a, b)).astype(np.float32) for a, b in pairwise(sizes)]
    if kind == "torch":
        return _in_torch(sizes, weights)

    def evaluate(x: Any) -> Any:
        h = x
        for weight in weights[:-1]:
            h = np.maximum(h @ weight, 0)
        return h @ weights[-1]

    return evaluate


def _in_torch(sizes: list[int], weights: list[Any]) -> Callable[[Any], Any]:
    import torch

    torch.set_num_threads(1)
    layers: list[torch.nn.Module] = []
    for (inputs, outputs), weight in zip(pairwise(sizes), weights):
        layer = torch.nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight.T.copy()))
            layer.bias.zero_()
        layers += [layer, torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])

    def evaluate(x: Any) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(x)[None])[0].numpy()

    return evaluate
