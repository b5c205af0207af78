"""Distributions of valuations on [0, 1]: uniform, beta, truncated normal, points, or a custom quantile function.

Every distribution becomes one table, used by the auction world for sampling and by the theory for equilibria, so that
both refer to exactly the same distribution. Continuous ones are cut into equally likely pieces, uniform within each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from coterie.core import lookup
from coterie.core.types import Array
from coterie.core.validation import positive, within

PIECES = 4096  # of a distribution without an exact table
NAMES = ("uniform", "beta", "truncated_normal", "points")


@dataclass(frozen=True)
class ValuationSettings:
    """A distribution on [0, 1]; each field applies to the distributions that its comment names."""

    name: str = "uniform"  # uniform, beta, truncated_normal, points, or package.module:Name, a quantile function
    low: float = 0.0  # uniform, truncated_normal: the smallest valuation
    high: float = 1.0  # uniform, truncated_normal: the largest
    alpha: float = 2.0  # beta: first shape parameter
    beta: float = 2.0  # beta: second shape parameter
    mean: float = 0.5  # truncated_normal: mean before truncation
    deviation: float = 0.2  # truncated_normal: standard deviation before truncation
    points: tuple[float, ...] = ()  # points: the possible valuations
    weights: tuple[float, ...] = ()  # points: their relative probabilities; empty: all equal

    def __post_init__(self) -> None:
        if self.name not in NAMES and ":" not in self.name:
            raise ValueError(f"valuations must be one of {', '.join(NAMES)} or package.module:Name, got {self.name!r}")
        positive("alpha", self.alpha)
        positive("beta", self.beta)
        positive("deviation", self.deviation)
        for name in ("low", "high"):
            within(name, getattr(self, name), 0, 1)
        if not self.low < self.high:
            raise ValueError(f"low must lie below high, got {self.low:g} and {self.high:g}")
        if self.name == "points":
            self._check_points()

    def _check_points(self) -> None:
        if not self.points:
            raise ValueError("points must name at least one valuation")
        for point in self.points:
            within("points", point, 0, 1)
        if len(set(self.points)) < len(self.points):
            raise ValueError(f"points must differ from each other, got {list(self.points)}")
        if self.weights and len(self.weights) != len(self.points):
            raise ValueError(f"weights must be as many as points, {len(self.points)}, got {len(self.weights)}")
        for weight in self.weights:
            positive("weights", weight)


UNIFORM = ValuationSettings()


@dataclass(frozen=True)
class Valuations:
    """A distribution as a table of its quantile function, linear between neighbouring levels."""

    levels: Array  # [K] float64: probabilities from 0 to 1; equal neighbours are a jump
    values: Array  # [K] float64: the valuations there, non-decreasing; equal neighbours are an atom
    atoms: bool  # the distribution is discrete

    @property
    def low(self) -> float:
        """The smallest valuation."""
        return float(self.values[0])

    @property
    def high(self) -> float:
        """The largest valuation."""
        return float(self.values[-1])

    def quantile(self, level: Array | float) -> Array:
        """The quantile function."""
        return interpolate(level, self.levels, self.values, "left")

    def cdf(self, value: Array | float) -> Array:
        """P(V ≤ value)."""
        return interpolate(value, self.values, self.levels, "right")

    def below(self, value: Array | float) -> Array:
        """P(V < value), which differs from `cdf` at atoms only."""
        return interpolate(value, self.values, self.levels, "left")


def tabulate(settings: ValuationSettings) -> Valuations:
    """The distribution for the settings; a ValueError if it leaves [0, 1]."""
    match settings.name:
        case "uniform":
            return Valuations(np.array([0.0, 1.0]), np.array([settings.low, settings.high], float), False)
        case "points":
            return _from_points(settings)
        case "beta":
            return _from_quantiles(lambda q: special.betaincinv(settings.alpha, settings.beta, q), settings.name)
        case "truncated_normal":
            return _from_quantiles(_truncated_normal(settings), settings.name)
    try:
        own: Callable[[Array], Array] = lookup.look_up({}, settings.name)
    except LookupError as error:
        raise ValueError(f"valuations: {error}") from None
    if not callable(own):
        raise ValueError(f"valuations '{settings.name}' must be a function of an array of probabilities, got {own!r}")
    return _from_quantiles(own, settings.name)


def _from_points(settings: ValuationSettings) -> Valuations:
    order = np.argsort(settings.points)
    weights = np.asarray(settings.weights or np.ones(len(order)), float)[order]
    upto = np.cumsum(weights) / weights.sum()
    upto[-1] = 1.0
    levels = np.stack([np.concatenate([[0.0], upto[:-1]]), upto], axis=1).ravel()
    return Valuations(levels, np.repeat(np.asarray(settings.points, float)[order], 2), True)


def _from_quantiles(quantile: Callable[[Array], Array], name: str) -> Valuations:
    levels = np.linspace(0.0, 1.0, PIECES + 1)
    try:
        values = np.asarray(quantile(levels), float)
    except Exception as error:  # a custom function may raise anything
        raise ValueError(f"valuations '{name}' failed on {PIECES + 1} probabilities: {error!r}") from error
    if values.shape != levels.shape:
        raise ValueError(f"valuations '{name}' must map {levels.shape} probabilities to values, got {values.shape}")
    wrong = ~((values >= 0) & (values <= 1))  # also true for NaN
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"valuations '{name}' must lie in [0, 1], got {values[at]:g} at quantile {levels[at]:g}; rescale them"
        )
    if (np.diff(values) < 0).any():
        at = int((np.diff(values) < 0).argmax())
        raise ValueError(f"valuations '{name}' must be a quantile function; it falls after quantile {levels[at]:g}")
    return Valuations(levels, values, False)


def _truncated_normal(settings: ValuationSettings) -> Callable[[Array], Array]:
    low, high = (special.ndtr((end - settings.mean) / settings.deviation) for end in (settings.low, settings.high))
    if not low < high:
        raise ValueError(
            f"truncated_normal with mean {settings.mean:g} and deviation {settings.deviation:g} has no mass between "
            f"{settings.low:g} and {settings.high:g}; move the mean or widen the deviation"
        )

    def quantile(level: Array) -> Array:
        value = settings.mean + settings.deviation * special.ndtri(low + level * (high - low))
        return np.clip(value, settings.low, settings.high)

    return quantile


def interpolate(x: Array | float, at: Array, table: Array, side: Literal["left", "right"] = "right") -> Array:
    """Interpolate a table linearly at `x`; where `at` repeats, `side` selects the entry."""
    x, last = np.asarray(x, float), len(at) - 1
    right = np.searchsorted(at, x, side=side)
    left, right = np.clip(right - 1, 0, last), np.clip(right, 0, last)
    width = at[right] - at[left]
    share = np.where(width > 0, (x - at[left]) / np.where(width > 0, width, 1.0), 0.0)
    found: Array = table[left] + np.clip(share, 0.0, 1.0) * (table[right] - table[left])
    return found
