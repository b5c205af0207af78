"""Work that is done in smaller parts once GPU memory has run out."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from coterie.algorithms.at_grpo.optimizer import Optimizer
from coterie.policies.causal_lm.weights import Weights

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
