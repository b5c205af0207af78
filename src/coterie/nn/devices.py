"""Which device a network is on. Arrays between packages stay NumPy arrays in main memory."""

from __future__ import annotations

from typing import Literal

import torch

Device = Literal["auto", "cpu", "cuda"]


def resolve_device(device: Device, compiled: bool) -> torch.device:
    """The device of a network.

    `auto` takes the CPU where the compiled path serves the network (small perceptrons are fastest there), else a GPU
    if there is one. Networks on a GPU compute in float32 throughout, without TF32, whose products have 10 bits.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda: PyTorch finds no CUDA device; set device=auto or device=cpu")
    if device == "cpu" or (device == "auto" and (compiled or not torch.cuda.is_available())):
        return torch.device("cpu")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda")
