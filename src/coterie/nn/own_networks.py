"""A user's own PyTorch module as the part of a network that reads observations (`policy.network: package.module:Name`).

The name stands for a class or function that is called with the shape of an observation (a dict of shapes for a dict
observation) and returns a module. The module maps observations `[M, …]` to features `[M, F]`. The global generators of
PyTorch, NumPy and Python are seeded while it is built, so that its first weights follow from the run's seed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import lookup
from coterie.core.global_random import global_state, seed_global, set_global_state
from coterie.nn.packing import Layout


class OwnNetwork(nn.Module):
    """One module for each parameter set, with a leading axis S of every parameter where there are several."""

    def __init__(self, name: str, lay: Layout, seeds: list[int]) -> None:
        super().__init__()
        self.lay = lay
        made = [build(name, lay, seed) for seed in seeds]
        self.module = made[0]
        self.names = [key for key, _ in self.module.named_parameters()]
        self.stacked = nn.ParameterList()  # of several parameter sets, in the order of `names`
        if len(made) > 1:
            for key in self.names:
                self.stacked.append(nn.Parameter(torch.stack([module.get_parameter(key).detach() for module in made])))
            self.module.requires_grad_(False)
        self.copies = nn.ModuleList()  # of `split`
        self.outputs = self._count_features(name)

    def _count_features(self, name: str) -> int:
        """The number of features that the module finds in an observation."""
        with torch.no_grad():
            found: Any = self.module(self.observations(torch.zeros(2, self.lay.size)))
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2 or not found.shape[1]:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"network: '{name}' must map observations [2, …] to features [2, F], got {shape}")
        return found.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Features `[S, M, F]` for packed observations `[S, M, size]`."""
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        if not len(self.stacked):
            features: Tensor = self.module(self.observations(x[0]))
            return features.unsqueeze(0)
        if len(self.copies):
            return torch.stack([module(self.observations(x[i])) for i, module in enumerate(self.copies)])
        parts = []
        for i, rows in enumerate(x):
            own = {key: values[i] for key, values in zip(self.names, self.stacked, strict=True)}
            parts.append(torch.func.functional_call(self.module, own, (self.observations(rows),)))
        return torch.stack(parts)

    def split(self) -> None:
        """Read by a copy of the module for each parameter set from now on: what a graph can hold."""
        for i in range(len(self.stacked[0]) if len(self.stacked) else 0):
            module = copy.deepcopy(self.module)
            for key, values in zip(self.names, self.stacked, strict=True):
                module.get_parameter(key).data = values.detach()[i].clone()
            self.copies.append(module)

    def observations(self, rows: Tensor) -> Tensor | dict[str, Tensor]:
        """Packed rows `[M, size]` in the shape of observations."""
        parts = {
            name: rows[:, entry.start : entry.stop].reshape(rows.shape[0], *entry.shape)
            for name, entry in self.lay.entries.items()
        }
        return next(iter(parts.values())) if self.lay.bare else parts


def build(name: str, lay: Layout, seed: int) -> nn.Module:
    """A module with the first weights of a seed."""
    try:
        make = lookup.look_up({}, name)
    except LookupError as error:
        raise ValueError(f"network: {error}") from None
    shapes = {key: entry.shape for key, entry in lay.entries.items()}
    with seeded(seed):
        module = make(next(iter(shapes.values())) if lay.bare else shapes)
    if not isinstance(module, nn.Module):
        raise ValueError(f"network: '{name}' must make a torch.nn.Module, got {type(module).__name__}")
    kept = [key for key, _ in module.named_buffers() if key in module.state_dict()]
    if kept:
        raise ValueError(
            f"network: '{name}' has buffers ({', '.join(kept)}) that learning does not change and checkpoints do not "
            "hold, as of BatchNorm; use LayerNorm, or register them with persistent=False if they are constants"
        )
    if not any(math.prod(p.shape) for p in module.parameters()):
        raise ValueError(f"network: '{name}' has no weights to learn")
    return module.eval()  # no dropout: acting and learning see the same network


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    before = global_state()
    seed_global(seed)
    try:
        yield
    finally:
        set_global_state(before)
