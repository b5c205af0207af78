"""One set of weights of a group's language model, as learners see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from coterie.core.types import Array
from coterie.lm.learn.graphed_passes import GraphedPasses
from coterie.lm.learn.network import CausalNetwork
from coterie.lm.learn.sampling import PAD, Graded, grade
from coterie.lm.learn.transformer import Transformer

__all__ = ["PAD", "Weights"]


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
