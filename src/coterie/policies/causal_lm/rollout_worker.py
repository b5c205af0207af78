"""RolloutWorkers: sample answers from one network."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from coterie.core.types import Array
from coterie.lm.learn.engine import Engine, EngineSpec, Request
from coterie.lm.learn.network import CausalNetwork
from coterie.lm.learn.sampling import PAD, Samples, SampleSpec, sample
from coterie.lm.learn.transformer import Transformer

BATCH = 512  # answers sampled at once without an engine
log = logging.getLogger(__name__)


class RolloutWorker:
    """Samples answers from one network and its adapters: on a GPU with the rollout engine, elsewhere plainly."""

    def __init__(self, network: CausalNetwork, room: EngineSpec) -> None:
        self.network, self.room = network, room
        on_gpu = network.device.type == "cuda"
        self.engine = Engine(network, room) if on_gpu and isinstance(network, Transformer) else None
        self.batch = BATCH

    def sample(
        self, prompts: Sequence[Sequence[int]], spec: SampleSpec, noise: Array, adapters: Array | None
    ) -> Samples:
        """Answers to the prompts; `noise` `[P, K, L]` decides the tokens, `adapters` `[P]` say who writes."""
        if self.engine is not None:
            ends = (spec.end,)
            return self.engine.sample(
                Request(prompts, spec.count, spec.max_tokens, spec.temperature, ends, noise, adapters)
            )
        shape = (len(prompts), spec.count, spec.max_tokens)
        whole = Samples(np.full(shape, PAD, np.int32), np.zeros(shape, "f4"), np.zeros(shape[:2], "f4"))
        for adapter in [None] if adapters is None else np.unique(adapters).tolist():
            left = np.arange(len(prompts)) if adapter is None else np.flatnonzero(adapters == adapter)
            while len(left):
                rows = left[: max(1, self.batch // spec.count)]
                flat = noise[rows].reshape(-1, spec.max_tokens)
                try:
                    found = sample(self.network, [prompts[row] for row in rows], replace(spec, adapter=adapter), flat)
                except torch.OutOfMemoryError:
                    if len(rows) == 1:
                        raise
                    self.batch = len(rows) // 2 * spec.count
                    log.warning("out of GPU memory: sampling goes on with %d answers at once", self.batch)
                    continue
                for into, array in zip(whole, found, strict=True):
                    into[rows] = array
                left = left[len(rows) :]
        return whole
