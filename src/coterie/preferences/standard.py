"""How a group values its rewards, applied at the learner's door; stored rewards stay the world's own.

`Individual` and `Team` value rewards step by step. The others judge a distribution of returns, in one of two ways:
*interim*, what may still come given what is seen now (a learner whose critic knows distributions asks `judge`), or
*episodic*, whole episodes as they look before they begin (`episodic.py` asks `influence`). See `docs/cpt.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.group import GroupSpec, RiskParameters, Stateless
from coterie.core.types import Array, Experience
from coterie.core.validation import at_least
from coterie.preferences import prospect

Way = Literal["interim", "episodic"]


@dataclass(frozen=True)
class IndividualSettings:
    """Nothing to set."""


class Individual(Stateless):
    """Each agent wants its own reward."""

    way = "step"

    def __init__(self, settings: IndividualSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        pass

    def rewards(self, experience: Experience) -> Array:
        return experience.reward


@dataclass(frozen=True)
class TeamSettings:
    """Nothing to set."""


class Team(Stateless):
    """Each agent wants the mean of its group's rewards, tick by tick."""

    way = "step"

    def __init__(self, settings: TeamSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        pass

    def rewards(self, experience: Experience) -> Array:
        mean = experience.reward.mean(axis=2, keepdims=True)
        return np.broadcast_to(mean, experience.reward.shape).astype(np.float32)


@dataclass(frozen=True)
class CPTSettings(prospect.Prospect):
    way: Way = "interim"  # given what is seen now, or whole episodes as they look beforehand


class CPT(Stateless):
    """Cumulative prospect theory (Tversky and Kahneman 1992): gains and losses, small chances overweighted."""

    def __init__(self, settings: CPTSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        self.taste, self.way = settings, settings.way

    def rewards(self, experience: Experience) -> Array:
        return experience.reward

    def judge(self) -> RiskParameters:
        t = self.taste
        return RiskParameters(t.alpha, t.beta, t.loss_aversion, t.reference, t.gamma_gains, t.gamma_losses)

    def value(self, samples: Array) -> Array:
        return prospect.value_of_samples(self.taste, samples)

    def influence(self, samples: Array) -> Array:
        return prospect.influence_of_samples(self.taste, samples)


@dataclass(frozen=True)
class CVaRSettings:
    way: Way = "interim"  # given what is seen now, or whole episodes as they look beforehand
    level: float = 0.25  # only the worst outcomes count, this share of all; 1: the mean

    def __post_init__(self) -> None:
        prospect.check_level(self.level)


class CVaR(Stateless):
    """Conditional value at risk: the mean of the worst outcomes."""

    def __init__(self, settings: CVaRSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        self.level, self.way = settings.level, settings.way

    def rewards(self, experience: Experience) -> Array:
        return experience.reward

    def judge(self) -> RiskParameters:
        return RiskParameters(level=self.level)

    def value(self, samples: Array) -> Array:
        return prospect.cvar_of_samples(samples, self.level)

    def influence(self, samples: Array) -> Array:
        return prospect.cvar_influence_of_samples(samples, self.level)


@dataclass(frozen=True)
class MeanVarianceSettings:
    way: Way = "interim"  # given what is seen now, or whole episodes as they look beforehand
    aversion: float = 1.0  # how much a unit of variance takes off the mean; 0: nothing

    def __post_init__(self) -> None:
        at_least("aversion", self.aversion, 0)
        if not np.isfinite(self.aversion):
            raise ValueError(f"aversion must be finite, got {self.aversion}")


class MeanVariance(Stateless):
    """The mean, less a multiple of the variance."""

    def __init__(self, settings: MeanVarianceSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        self.aversion, self.way = settings.aversion, settings.way

    def rewards(self, experience: Experience) -> Array:
        return experience.reward

    def judge(self) -> RiskParameters:
        return RiskParameters(aversion=self.aversion)

    def value(self, samples: Array) -> Array:
        return prospect.mean_variance_of_samples(samples, self.aversion)

    def influence(self, samples: Array) -> Array:
        return prospect.mean_variance_influence_of_samples(samples, self.aversion)
