"""RolloutWorkers: sample answers with one set of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coterie.core.types import Array
from coterie.lm.sampling import Samples, SampleSpec, sample
from coterie.policies.teams.weights import PAD, Weights

BATCH = 512  # answers sampled at once


class RolloutWorker:
    """Samples answers with one set of weights, in batches."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def sample(self, prompts: Sequence[Sequence[int]], spec: SampleSpec, noise: Array) -> Samples:
        """Answers to the prompts; `noise` `[P, K, L]` decides the tokens."""
        spec = replace(spec, adapter=self.weights.adapter)
        each = max(1, BATCH // spec.count)
        parts = []
        for first in range(0, len(prompts), each):
            chosen = slice(first, first + each)
            parts.append(
                sample(self.weights.network, prompts[chosen], spec, noise[chosen].reshape(-1, spec.max_tokens))
            )
        if not parts:
            shape = (0, spec.count, spec.max_tokens)
            return Samples(np.full(shape, PAD, np.int32), np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32))
        return Samples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
