"""RolloutWorkers sample answers from one network; the Router says which weights answer for which agent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.group import GroupSpec
from coterie.core.types import Array
from coterie.lm.learn.engine import Engine, EngineSpec, Request
from coterie.lm.learn.network import CausalNetwork
from coterie.lm.learn.sampling import PAD, Samples, SampleSpec, sample
from coterie.lm.learn.transformer import Transformer


class Route(NamedTuple):
    """Rows that one network answers."""

    network: int
    rows: Array  # [R]
    adapters: Array | None  # [R] the adapter of each row; None: the network has none


class Router:
    """Maps the agents of a group to its sets of weights: one for all, or one for each.

    A set is a network of its own, or an adapter of the one network that all share.
    """

    def __init__(self, group_spec: GroupSpec, adapters: bool) -> None:
        self.sets, self.adapters = group_spec.parameter_sets, adapters
        self.of_agent = np.arange(len(group_spec.agents)) if self.sets > 1 else np.zeros(len(group_spec.agents), int)

    def route(self, agents: Array, wanted: Array) -> Iterator[Route]:
        """Yield each network with the wanted rows `[R]` whose agents it serves; networks without rows are left out."""
        owner = self.of_agent[agents]
        for network in range(1 if self.adapters else self.sets):
            rows = np.flatnonzero(wanted & (self.adapters | (owner == network)))
            if len(rows):
                yield Route(network, rows, owner[rows] if self.adapters else None)


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
