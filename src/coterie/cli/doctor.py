"""Examines this machine: versions, cores, GPU, optional packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator

NEEDED = (
    "numpy",
    "numba",
    "scipy",
    "threadpoolctl",
    "torch",
    "safetensors",
    "pydantic",
    "omegaconf",
    "typer",
    "rich",
    "matplotlib",
    "pillow",
)
OPTIONAL = {
    "gymnasium": "worlds named gymnasium/…, Gymnasium export of worlds (coterie[worlds])",
    "Box2D": "gymnasium/LunarLander-v3 and other Box2D worlds (coterie[worlds])",
    "pettingzoo": "worlds named pettingzoo/…, PettingZoo export of worlds (coterie[worlds])",
    "mpe2": "worlds named mpe/… (coterie[worlds])",
    "open_spiel": "worlds named openspiel/… (coterie[openspiel])",
    "minigrid": "worlds named minigrid/… (coterie[worlds])",
    "pygame-ce": "windows (coterie[window])",
    "tensorboard": "TensorBoard files (coterie[tensorboard])",
    "optuna": "coterie tune (coterie[tune])",
}


def examine() -> Iterator[str]:
    """One line for each finding."""
    import torch

    yield f"python        {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield f"cores         {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}"
    yield f"gpu           {torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'none'}"
    yield f"sandbox       {_sandbox()}"
    for name in NEEDED:
        yield f"{name:13} {_version(name) or 'MISSING: reinstall coterie'}"
    for name, purpose in OPTIONAL.items():
        yield f"{name:13} {_version(name) or f'not installed; needed for {purpose}'}"


def _sandbox() -> str:
    """What isolates programs that a language model wrote."""
    from coterie import sandbox

    try:
        return f"{sandbox.live_mechanism()} isolates programs that a model wrote"
    except sandbox.SandboxUnavailable as error:
        return f"none: {error}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
