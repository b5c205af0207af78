"""The parts of a language model that sampling and training call: our transformer, or another behind the same face."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn


class Keys(Protocol):
    """Keys and values of rows that are being written."""

    @property
    def filled(self) -> int:
        """Positions so far."""
        ...

    def repeated(self, times: int, rows: Tensor | None = None) -> Self:
        """The same with every row `times` times; or these rows alone."""
        ...


class CausalNetwork(nn.Module, abc.ABC):
    """Token ids to the logits of the next token; adapters hang on frozen weights."""

    compute: torch.dtype  # of products and activations

    @property
    @abc.abstractmethod
    def context(self) -> int:
        """Most positions."""

    @property
    @abc.abstractmethod
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    @abc.abstractmethod
    def output_embedding(self) -> Tensor:
        """The matrix `[V, W]` that makes logits."""

    @abc.abstractmethod
    def forward(
        self,
        tokens: Tensor,  # [R, L]
        adapter: int | None = None,
        positions: Tensor | None = None,  # [R, L]; None: 0, 1, …
        mask: Any = None,  # [R, 1, L, S] bool: who may look at whom; None: every position looks back
        caches: Sequence[Any] | None = None,
    ) -> Tensor:
        """Return the hidden states `[R, L, W]`; `logits` makes logits of them."""

    @abc.abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token, in float32."""

    @abc.abstractmethod
    def new_caches(self, rows: int, size: int) -> Sequence[Keys]:
        """Empty caches for `forward`."""

    @abc.abstractmethod
    def add_adapters(self, count: int, rank: int, alpha: float, seeds: list[int]) -> None:
        """Freeze the weights and hang adapters on the linear maps; a new adapter changes nothing (B = 0)."""

    @abc.abstractmethod
    def adapter_parameters(self, adapter: int) -> list[nn.Parameter]:
        """The parameters of one adapter."""

    def set_precision(self, compute: torch.dtype) -> None:
        """Compute in this precision; frozen weights are kept in it too."""
        self.compute = compute
        for parameter in self.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(compute)
