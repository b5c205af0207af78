"""Preferences, the valuation of a group's rewards: individual, team, or a risk measure of its returns.

The learner applies the preference; stored rewards stay unchanged. `Individual` and `Team` value rewards step by
step. `CPT`, `CVaR` and `MeanVariance` value a distribution of returns, in one of two scopes: *interim*, the outcomes of
one decision given its observation (critics that predict distributions use `risk_parameters`), or *episodic*, the
returns of whole episodes (`episodic.py` uses `influence`). See `docs/guides/cpt.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.decisions import Decisions
from coterie.core.group import GroupSpec, Preference, Risk, RiskParameters
from coterie.core.settings import Settings
from coterie.core.types import Array
from coterie.core.validation import at_least
from coterie.preferences import prospect

Scope = Literal["interim", "episodic"]


@dataclass(frozen=True)
class IndividualSettings(Settings):
    """No settings."""


class Individual(Preference):
    """Each agent maximises its own reward."""

    def __init__(self, settings: IndividualSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        pass

    def rewards(self, decisions: Decisions) -> Array:
        return decisions.reward


@dataclass(frozen=True)
class TeamSettings(Settings):
    """No settings."""


class Team(Preference):
    """Each agent maximises the mean of its group's rewards, step by step."""

    def __init__(self, settings: TeamSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        pass

    def rewards(self, decisions: Decisions) -> Array:
        return decisions.group_reward


class RiskMeasure(Risk):
    """Values a distribution of returns by a risk measure; subclasses differ only in its parameters."""

    def __init__(self, risk: RiskParameters, scope: Scope) -> None:
        self.risk, self.scope = risk, scope

    def risk_parameters(self) -> RiskParameters:
        return self.risk

    def value(self, samples: Array) -> Array:
        return prospect.value_of_samples(self.risk, samples)

    def influence(self, samples: Array) -> Array:
        return prospect.influence_of_samples(self.risk, samples)


@dataclass(frozen=True)
class CPTSettings(prospect.Prospect, Settings):
    """Settings of the preference 'cpt'."""

    scope: Scope = "interim"  # outcomes of a decision given its observation, or returns of whole episodes


class CPT(RiskMeasure):
    """Cumulative prospect theory (Tversky and Kahneman 1992): gains and losses, small probabilities overweighted."""

    def __init__(self, settings: CPTSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        super().__init__(settings.risk_parameters(), settings.scope)


@dataclass(frozen=True)
class CVaRSettings(Settings):
    """Settings of the preference 'cvar'."""

    scope: Scope = "interim"  # outcomes of a decision given its observation, or returns of whole episodes
    level: float = 0.25  # the fraction of worst outcomes that counts; 1: the mean

    def __post_init__(self) -> None:
        if not 0 < self.level <= 1:
            raise ValueError(f"level must lie in (0, 1], got {self.level:g}")


class CVaR(RiskMeasure):
    """Conditional value at risk: the mean of the worst outcomes."""

    def __init__(self, settings: CVaRSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        super().__init__(RiskParameters(level=settings.level), settings.scope)


@dataclass(frozen=True)
class MeanVarianceSettings(Settings):
    """Settings of the preference 'mean_variance'."""

    scope: Scope = "interim"  # outcomes of a decision given its observation, or returns of whole episodes
    aversion: float = 1.0  # weight of the variance subtracted from the mean; 0: the mean alone

    def __post_init__(self) -> None:
        at_least("aversion", self.aversion, 0)
        if not np.isfinite(self.aversion):
            raise ValueError(f"aversion must be finite, got {self.aversion}")


class MeanVariance(RiskMeasure):
    """The mean minus a multiple of the variance."""

    def __init__(self, settings: MeanVarianceSettings, group_spec: GroupSpec | None = None, gamma: float = 1.0) -> None:
        super().__init__(RiskParameters(aversion=settings.aversion), settings.scope)
