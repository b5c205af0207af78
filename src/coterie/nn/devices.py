"""The device of a network. Arrays between packages stay NumPy arrays in main memory."""

from __future__ import annotations

import os
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
    torch.backends.cuda.enable_cudnn_sdp(False)  # plans attention anew for each shape of a batch, 50 ms each
    return torch.device("cuda")


def resolve_precision(precision: Literal["auto", "float32", "bfloat16"], device: torch.device) -> torch.dtype:
    """The precision of products; `auto` is bfloat16 on a GPU and float32 on a CPU, where bfloat16 is slow."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def demand_deterministic() -> None:
    """From now on in this process, take kernels that give the same numbers in every run; call before any product."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True)
