"""AdamW on a list of parameters, with a state that checkpoints can hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.types import Array

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
