"""Policies that follow a rule: uniform random play, and the world's own reference player."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.core.group import GroupSpec, Stateless
from coterie.core.types import Box, Decision, Discrete, MultiDiscrete, View, leading
from coterie.core.world import HasExpert
from coterie.nn.distributions import Choices


@dataclass(frozen=True)
class RandomSettings:
    """Nothing to set."""


class RandomPolicy(Stateless):
    """Every legal action with equal probability."""

    memory_size = 0

    def __init__(self, settings: RandomSettings, group_spec: GroupSpec) -> None:
        self.space = group_spec.spaces.action

    def act(self, view: View) -> Decision:
        lead = leading(view.observation).shape[:2]
        match self.space:
            case Discrete(n):
                head = Choices((n,), single=True)
            case MultiDiscrete(sizes):
                head = Choices(sizes, single=False)
            case Box(shape, low, high):
                low = np.maximum(np.broadcast_to(np.asarray(low, np.float32), shape), -10)
                high = np.minimum(np.broadcast_to(np.asarray(high, np.float32), shape), 10)
                return Decision((low + view.random.random((*lead, *shape)) * (high - low)).astype(np.float32))
        zeros = np.zeros((*lead, head.outputs), np.float32)
        return Decision(*head.act(zeros, view.mask, view.random, greedy=False))


@dataclass(frozen=True)
class ExpertSettings:
    """Nothing to set."""


class ExpertPolicy(Stateless):
    """The reference player that the world brings along (grid world: shortest paths)."""

    memory_size = 0
    needs = HasExpert

    def __init__(self, settings: ExpertSettings, group_spec: GroupSpec) -> None:
        self.group_spec = group_spec

    def act(self, view: View) -> Decision:
        if not isinstance(view.world, HasExpert) or view.columns is None:
            raise ValueError("the heuristic plays by the world's state; bare observations do not tell it enough")
        action = view.world.expert(view.agent_type, view.random)[:, view.columns]
        if view.mask is not None and isinstance(self.group_spec.spaces.action, Discrete):
            barred = ~np.take_along_axis(view.mask, action[..., None], axis=-1)[..., 0]
            if barred.any():  # by whoever watches over the group: something else that is allowed
                even = Choices((view.mask.shape[-1],), single=True)
                zeros = np.zeros(view.mask.shape, np.float32)
                allowed = even.act(zeros, view.mask, view.random, greedy=False)[0]
                action = np.where(barred & view.acting, allowed, action)
        return Decision(action)
