"""The global generators of Python, NumPy and PyTorch. Coterie draws nothing from them; third-party environments may."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


def global_state() -> tuple[Any, ...]:
    """Return the state of the global generators; that of PyTorch (on the CPU) only where it has been imported."""
    torch = sys.modules.get("torch")
    return (
        random.getstate(),
        np.random.get_state(),  # noqa: NPY002
        None if torch is None else torch.default_generator.get_state(),
    )


def set_global_state(state: tuple[Any, ...]) -> None:
    """Return the global generators to a state."""
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    if state[2] is not None:
        sys.modules["torch"].default_generator.set_state(state[2])


def seed_global(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)
