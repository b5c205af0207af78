"""Low-rank adapters on a model of transformers (LoRA, Hu et al. 2022): few numbers that learn beside frozen weights.

An adapted layer gives W x + (alpha / rank) B A x (section 4.1); only A and B learn, and B begins at zero, so an adapted
model begins as the model it was. Models that share weights may each have adapters of their own (`twin`). What moves
the numbers, and when, is the learner's affair: `nets.FlatParams`, `nets.export` and `nets.restore` take all that learns.
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
from coterie.lm.interface import needs

ALL = "all-linear"
LAYER = re.compile(r"\.(\d+)\.")  # the number of a layer within a module's name


@dataclass(frozen=True)
class AdapterSettings:
    """What is adapted, and how much freedom it gets."""

    rank: int = 16  # numbers that a layer's change passes through
    alpha: float = 32.0  # changes are scaled by alpha / rank
    targets: tuple[str, ...] = (ALL,)  # all-linear, or names of layers such as q_proj
    layers: int = 0  # adapt this many last layers only; 0: all

    def __post_init__(self) -> None:
        at_least("rank", self.rank, 1)
        positive("alpha", self.alpha)
        at_least("layers", self.layers, 0)
        if not self.targets:
            raise ValueError("targets must name at least one layer, got none; all-linear adapts every one")


def twin(model: nn.Module) -> Any:
    """A model of its own over the same weights, frozen: what is attached to one does not touch the other."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def attach(model: Any, settings: AdapterSettings, seed: int) -> None:
    """Put adapters on a model, in place, and freeze all else; equal seeds give equal adapters."""
    peft = needs("peft", "lm")
    if adapted(model):
        raise ValueError("this model has adapters already; attach new ones to a twin of the plain model")
    names = targets(model, settings)
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=names, lora_dropout=0.0, bias="none"
    )
    with torch.random.fork_rng(devices=[]):  # peft draws from the global generator; what it draws is replaced below
        peft.inject_adapter_in_model(config, model)
    random = torch.Generator().manual_seed(seed)
    for layer in adapted(model):
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        # float32 beside weights of any precision: steps of 1e-4 are lost in a bfloat16
        down.data, up.data = down.data.float(), torch.zeros_like(up.data, dtype=torch.float32)
        bound = 1 / math.sqrt(down.shape[1])  # as PyTorch's linear layers begin
        down.data.copy_(torch.empty(down.shape).uniform_(-bound, bound, generator=random))


def targets(model: Any, settings: AdapterSettings) -> list[str]:
    """Full names of the layers to adapt; a name that fits none is refused."""
    head = model.get_output_embeddings()  # None: it has none
    linear = [
        name
        for name, module in model.named_modules()
        if module is not head and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    ]
    found = [name for name in linear if settings.targets == (ALL,) or name.rpartition(".")[2] in settings.targets]
    known = {name.rpartition(".")[2] for name in linear}
    strangers = [name for name in settings.targets if name not in known and settings.targets != (ALL,)]
    if strangers:
        raise ValueError(f"targets: this model has no layer '{strangers[0]}'; there are {', '.join(sorted(known))}")
    if not found:
        raise ValueError("targets: this model has no linear layers, and adapters have no place in it")
    if not settings.layers:
        return found
    numbers = {name: int(number[1]) for name in found if (number := LAYER.search(name))}
    if not numbers:
        raise ValueError("layers counts from the last one, but the layers of this model have no numbers; set layers=0")
    first = max(numbers.values(), default=-1) + 1 - settings.layers
    return [name for name, number in numbers.items() if number >= first]


def adapted(model: nn.Module) -> list[Any]:
    """The layers that carry an adapter, in the model's order."""
    return [module for module in model.modules() if "lora_A" in module._modules]


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before it was adapted."""
    layers: Sequence[Any] = adapted(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
