"""Low-rank adapters on a transformers model (LoRA, Hu et al. 2022): a few trained weights next to frozen ones.

An adapted layer computes W x + (alpha / rank) B A x (section 4.1). Only A and B are trained; B starts at zero, so an
adapted model starts with the outputs of the base model. Several models may share the base weights, each with its own
adapters (`frozen_copy`). `nn.networks.FlatParams`, `export` and `restore` handle exactly the weights that are trained.

This is for one policy on any transformers model: `policies/lora.py`, `policies/text_encoder.py`. The adapters of
teams are in `lm/learn/transformer.py`, a network of our own, whose rows in one batch may have different adapters, and in
`lm/learn/hugging_face.py`, where several roles have theirs on one model.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from coterie.core.validation import at_least, positive
from coterie.lm.ask.interface import import_extra

ALL_LINEAR = "all-linear"
LAYER_NUMBER = re.compile(r"\.(\d+)\.")  # within a module's name


@dataclass(frozen=True)
class LoraAdapterSettings:
    """Settings of an adapter: the layers that it changes, and its size."""

    rank: int = 16  # rank of the change of a layer's weights
    alpha: float = 32.0  # the change is scaled by alpha / rank
    target_modules: tuple[str, ...] = (ALL_LINEAR,)  # all-linear, or names of modules such as q_proj
    last_layers: int = 0  # adapt this many last layers only; 0: all

    def __post_init__(self) -> None:
        at_least("rank", self.rank, 1)
        positive("alpha", self.alpha)
        at_least("last_layers", self.last_layers, 0)
        if not self.target_modules:
            raise ValueError("target_modules must name at least one module, got none; all-linear adapts all of them")


def frozen_copy(model: nn.Module) -> Any:
    """Copy a model without its weights: the copy shares them, frozen, and adapters added to it stay its own."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def add_adapters(model: Any, settings: LoraAdapterSettings, seed: int) -> None:
    """Add adapters to a model in place and freeze the other weights; equal seeds give equal adapters."""
    peft = import_extra("peft", "lm")
    if adapted_layers(model):
        raise ValueError("this model already has adapters; add new ones to a frozen copy of the base model")
    names = target_names(model, settings)
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=names, lora_dropout=0.0, bias="none"
    )
    with torch.random.fork_rng(devices=[]):  # peft draws from the global generator; its draws are replaced below
        peft.inject_adapter_in_model(config, model)
    random = torch.Generator().manual_seed(seed)
    for layer in adapted_layers(model):
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        # float32 whatever the precision of the base weights: bfloat16 would lose steps of 1e-4
        down.data, up.data = down.data.float(), torch.zeros_like(up.data, dtype=torch.float32)
        bound = 1 / math.sqrt(down.shape[1])  # the initialisation of PyTorch's linear layers
        down.data.copy_(torch.empty(down.shape).uniform_(-bound, bound, generator=random))


def target_names(model: Any, settings: LoraAdapterSettings) -> list[str]:
    """Return the full names of the modules to adapt; raise `ValueError` for a target that the model lacks."""
    head = model.get_output_embeddings()  # None where the model has no head
    linear = [
        name
        for name, module in model.named_modules()
        if module is not head and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    ]
    targets = settings.target_modules
    found = [name for name in linear if targets == (ALL_LINEAR,) or name.rpartition(".")[2] in targets]
    known = {name.rpartition(".")[2] for name in linear}
    unknown = [name for name in targets if name not in known and targets != (ALL_LINEAR,)]
    if unknown:
        raise ValueError(f"target_modules: this model has no '{unknown[0]}'; it has {', '.join(sorted(known))}")
    if not found:
        raise ValueError("target_modules: this model has no linear layers that could be adapted")
    if not settings.last_layers:
        return found
    numbers = {name: int(number[1]) for name in found if (number := LAYER_NUMBER.search(name))}
    if not numbers:
        raise ValueError("last_layers: the layers of this model have no numbers; set last_layers=0")
    first = max(numbers.values(), default=-1) + 1 - settings.last_layers
    return [name for name, number in numbers.items() if number >= first]


def adapted_layers(model: nn.Module) -> list[Any]:
    """Return the layers that have an adapter, in the model's order."""
    return [module for module in model.modules() if "lora_A" in module._modules]


@contextmanager
def adapters_disabled(model: nn.Module) -> Iterator[None]:
    """Run the base model, without its adapters, inside the block."""
    layers: Sequence[Any] = adapted_layers(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
