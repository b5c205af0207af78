"""Policies that do not learn: random actions, random answers in the right form, and the world's scripted expert."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.core.group import GroupSpec, Stateless
from coterie.core.types import (
    UNLABELLED,
    Array,
    Box,
    Decision,
    Discrete,
    MultiDiscrete,
    Text,
    View,
    leading,
    random_texts,
    sampling_bounds,
)
from coterie.core.validation import within
from coterie.core.world import HasExpert, HasGuess
from coterie.nn.distributions import Choices


@dataclass(frozen=True)
class RandomSettings:
    """No settings."""


class RandomPolicy(Stateless):
    """Draws legal actions uniformly; see `sampling_bounds` for boxes without bounds, `random_texts` for texts."""

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
            case Text():
                return Decision(random_texts(self.space, lead, view.random))
            case Box(shape):
                low, high = (bound.astype(np.float32) for bound in sampling_bounds(self.space))
                drawn = (low + view.random.random((*lead, *shape)) * (high - low)).astype(np.float32)
                return Decision(np.clip(drawn, low, high))  # the product may round past the bound
        zeros = np.zeros((*lead, head.outputs), np.float32)
        return Decision(*head.act(zeros, view.mask, view.random, greedy=False))


@dataclass(frozen=True)
class ExpertSettings:
    """Settings of the policy 'expert'."""

    # Share of decisions that are random instead. Demonstrations keep them without a label, so that they show how the
    # expert goes on from states that its own play never reaches (noise injection as in DART, Laskey et al. 2017).
    mistakes: float = 0.0

    def __post_init__(self) -> None:
        within("mistakes", self.mistakes, 0, 1)


class ExpertPolicy(Stateless):
    """Takes the actions of the world's scripted expert (grid world: shortest paths)."""

    memory_size = 0
    needs = HasExpert

    def __init__(self, settings: ExpertSettings, group_spec: GroupSpec) -> None:
        self.settings, self.group_spec = settings, group_spec

    def act(self, view: View) -> Decision:
        action = self._action(view)
        if not self.settings.mistakes:
            return Decision(action)
        wrong = (view.random.random(view.acting.shape) < self.settings.mistakes) & view.acting
        guesses = isinstance(view.world, HasGuess) and isinstance(self.group_spec.spaces.action, Text)
        other = (
            GuessPolicy(GuessSettings(), self.group_spec)
            if guesses
            else RandomPolicy(RandomSettings(), self.group_spec)
        )
        drawn = other.act(view).action
        mixed = np.where(wrong.reshape(*wrong.shape, *(1,) * (drawn.ndim - wrong.ndim)), drawn, action)
        return Decision(mixed, trace={UNLABELLED: wrong})

    def _action(self, view: View) -> Array:
        """The action of the world's expert, or a random one where a shield forbids it."""
        if not isinstance(view.world, HasExpert) or view.columns is None:
            raise ValueError("policy 'expert' needs the state of the world; it cannot act on observations alone")
        action = view.world.expert(view.agent_type, view.random)[:, view.columns]
        if view.mask is not None and isinstance(self.group_spec.spaces.action, Discrete):
            barred = ~np.take_along_axis(view.mask, action[..., None], axis=-1)[..., 0]
            if barred.any():  # a shield forbids the expert's action: draw an allowed one
                even = Choices((view.mask.shape[-1],), single=True)
                zeros = np.zeros(view.mask.shape, np.float32)
                allowed = even.act(zeros, view.mask, view.random, greedy=False)[0]
                action = np.where(barred & view.acting, allowed, action)
        return action


@dataclass(frozen=True)
class GuessSettings:
    """No settings."""


class GuessPolicy(Stateless):
    """Writes random answers in the form that the world asks for: a baseline that knows only the answer format."""

    memory_size = 0
    needs = HasGuess

    def __init__(self, settings: GuessSettings, group_spec: GroupSpec) -> None:
        self.group_spec = group_spec

    def act(self, view: View) -> Decision:
        if not isinstance(view.world, HasGuess) or view.columns is None:
            raise ValueError("policy 'guess' needs the state of the world; it cannot act on observations alone")
        return Decision(view.world.guess(view.agent_type, view.random)[:, view.columns])
