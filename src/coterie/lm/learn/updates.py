"""What learners need to change a language model: one set of weights, its optimiser, and parts that fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.types import Array
from coterie.lm.learn.graphed_passes import GraphedPasses
from coterie.lm.learn.network import CausalNetwork
from coterie.lm.learn.sampling import Graded, grade
from coterie.lm.learn.transformer import Transformer


@dataclass(frozen=True)
class Weights:
    """A network, and which of its adapters; None: the network itself."""

    network: CausalNetwork
    adapter: int | None

    @cached_property
    def passes(self) -> GraphedPasses | None:
        """Passes that are captured and replayed on a GPU; None elsewhere, and for networks that are not our own."""
        if isinstance(self.network, Transformer) and self.network.device.type == "cuda":
            return GraphedPasses(self.network, self.adapter, self.parameters())
        return None

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that a learner may change."""
        return (
            list(self.network.parameters()) if self.adapter is None else self.network.adapter_parameters(self.adapter)
        )

    def grade(self, prompts: Sequence[Sequence[int] | Array], answers: Array, temperature: float = 1.0) -> Graded:
        """Log-probabilities of answers `[P, K, L]` with gradients, K to every prompt."""
        return grade(self.network, prompts, answers, temperature, self.adapter, self.passes)


BETAS = (0.9, 0.95)


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019) with gradients clipped by their norm."""

    def __init__(self, parameters: list[nn.Parameter], weight_decay: float = 0.0) -> None:
        self.parameters = parameters
        on_gpu = parameters[0].is_cuda
        self.adam = torch.optim.AdamW(parameters, lr=1.0, betas=BETAS, weight_decay=weight_decay, fused=on_gpu)
        self.keep = on_gpu  # gradients stay where they are: CUDA graphs add to them
        if self.keep:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)

    def step(self, learning_rate: float, max_grad_norm: float) -> Tensor:
        """Follow the accumulated gradients and forget them; returns their norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_grad_norm)
        for group in self.adam.param_groups:
            group["lr"] = learning_rate
        self.adam.step()
        self.zero_gradients()
        return norm

    def zero_gradients(self) -> None:
        """Forget accumulated gradients."""
        self.adam.zero_grad(set_to_none=not self.keep)

    @torch.no_grad()
    def weight_norms(self) -> Array:
        """The norm of every parameter; not finite where a weight is not."""
        norms: Array = torch.stack(torch._foreach_norm([*self.parameters])).cpu().numpy()
        return norms

    def state(self) -> list[dict[str, Any]]:
        """The moments of every parameter; {} before the first step."""
        return [
            {name: value.detach().cpu().numpy().copy() for name, value in self.adam.state.get(parameter, {}).items()}
            for parameter in self.parameters
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Return to a saved state."""
        if len(state) != len(self.parameters):
            raise ValueError(f"the saved optimiser has {len(state)} arrays, this one {len(self.parameters)}")
        self.adam.state.clear()
        for parameter, held in zip(self.parameters, state, strict=True):
            if held:
                self.adam.state[parameter] = {
                    name: torch.from_numpy(array.copy()).to(
                        "cpu" if name == "step" and not parameter.is_cuda else parameter.device
                    )
                    for name, array in held.items()
                }


log = logging.getLogger(__name__)


class FittingParts:
    """Takes gradients of one set of weights in parts that fit into memory."""

    def __init__(self, weights: Weights, optimizer: Optimizer) -> None:
        self.weights, self.optimizer = weights, optimizer
        self.most: int | None = None  # prompts that fit, once memory has run out

    def run(self, gradients: Callable[[int], Tensor], size: int) -> Tensor:
        """Call `gradients` with the prompts of a part, `size` or as many as fit; returns its result."""
        while True:
            size = min(size, self.most or size)
            try:
                return gradients(size)
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
            # After the block: what the failed attempt held is free now.
            self.optimizer.zero_gradients()
            self.most = size // 2
            if self.weights.passes is not None:
                self.weights.passes.clear()  # they keep the memory of batches that were larger
            torch.cuda.empty_cache()
            log.warning("out of GPU memory: the update goes on with %d prompts at once", self.most)
