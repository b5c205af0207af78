"""Cumulative prospect theory and other ways to judge a distribution of outcomes, in NumPy.

Utility and weighting are those of Tversky and Kahneman (1992); values are rank-dependent: probabilities are weighted
from the extreme outcomes inwards, gains and losses apart. Everything takes leading batch axes, `[…, K]`, and judges
the last one. How much each of several samples moves a value is here too; learning from that is in `episodic.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from coterie.core.types import Array
from coterie.core.validation import positive

LEAST_GAMMA = 0.28  # below about 0.279 the weighting is not monotone


@dataclass(frozen=True)
class Prospect:
    """A taste for risk. Defaults are the medians of Tversky and Kahneman (1992)."""

    alpha: float = 0.88  # curvature of gains: u(x) = x^alpha above the reference
    beta: float = 0.88  # curvature of losses
    loss_aversion: float = 2.25  # λ: how much more a loss weighs than an equal gain
    gamma_gains: float = 0.61  # curvature of the probability weighting of gains; 1: none
    gamma_losses: float = 0.69  # the same for losses
    reference: float = 0.0  # the outcome that is neither gain nor loss

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "loss_aversion"):
            positive(name, getattr(self, name))
        for name in ("gamma_gains", "gamma_losses"):
            if getattr(self, name) < LEAST_GAMMA:
                cause = "below which the weighting is not monotone"
                raise ValueError(f"{name} must be at least {LEAST_GAMMA}, {cause}; got {getattr(self, name):g}")
        for spec in fields(Prospect):
            if not np.isfinite(getattr(self, spec.name)):
                raise ValueError(f"{spec.name} must be finite, got {getattr(self, spec.name)}")


NEUTRAL = Prospect(1.0, 1.0, 1.0, 1.0, 1.0)  # values a distribution by its mean


def power(exponent: float) -> Prospect:
    """The utility x^r of gains alone, probabilities as they are: averse to risk below 1."""
    return Prospect(exponent, exponent, 1.0, 1.0, 1.0)


def utility(taste: Prospect, outcome: Array | float) -> Array:
    """u(x), counted from the reference."""
    gain = np.asarray(outcome, float) - taste.reference
    up = np.maximum(gain, 0.0) ** taste.alpha
    down = np.maximum(-gain, 0.0) ** taste.beta
    return np.where(gain >= 0, up, -taste.loss_aversion * down)


def weight(probability: Array | float, gamma: float) -> Array:
    """w(p) = p^γ / (p^γ + (1 − p)^γ)^{1/γ}; rounding just outside [0, 1] is cut off."""
    p = np.clip(np.asarray(probability, float), 0.0, 1.0)
    if gamma == 1.0:
        return p
    up, down = p**gamma, (1.0 - p) ** gamma
    weighted: Array = up / (up + down) ** (1.0 / gamma)
    return weighted


def value(taste: Prospect, outcomes: Array, probabilities: Array) -> Array:
    """The CPT value of distributions: `outcomes` and `probabilities` `[…, K]`, the latter summing to 1, to `[…]`."""
    outcomes, probabilities = _sorted(outcomes, probabilities)
    upto = np.cumsum(probabilities, axis=-1)
    before = upto - probabilities
    # How likely it is to get at least this, and more than this: sums from the other end, exact near 0.
    atleast = np.cumsum(probabilities[..., ::-1], axis=-1)[..., ::-1]
    more = atleast - probabilities
    gains = weight(atleast, taste.gamma_gains) - weight(more, taste.gamma_gains)
    losses = weight(upto, taste.gamma_losses) - weight(before, taste.gamma_losses)
    return _weighed(taste, outcomes, gains, losses)


def lottery(taste: Prospect, better: Array | float, worse: Array | float, chance: Array | float) -> Array:
    """The CPT value of getting `better` with probability `chance` and else `worse`, which is no greater.

    The same as `value` with two outcomes, without sorting.
    """
    up, down = utility(taste, better), utility(taste, worse)
    gain, loss = weight(chance, taste.gamma_gains), weight(1.0 - np.asarray(chance), taste.gamma_losses)
    better_weight = np.where(np.asarray(better) >= taste.reference, gain, 1.0 - loss)
    worse_weight = np.where(np.asarray(worse) >= taste.reference, 1.0 - gain, loss)
    return better_weight * up + worse_weight * down


def sample_weights(taste: Prospect, count: int) -> tuple[Array, Array]:
    """Decision weights `[M]` of the i-th smallest of M equally likely outcomes, as a gain and as a loss."""
    rank = np.arange(count + 1) / count
    gains = np.diff(weight(rank, taste.gamma_gains))[::-1]
    losses = np.diff(weight(rank, taste.gamma_losses))
    return gains, losses


def value_of_samples(taste: Prospect, samples: Array) -> Array:
    """The CPT value estimated from `[…, M]` samples, or from as many quantiles that are equally far apart.

    The estimator of Prashanth et al. (2016), "Cumulative prospect theory meets reinforcement learning", eqs. 4 and 5:
    with X₁ ≤ … ≤ X_M, Σ u⁺(Xᵢ) [w⁺((M+1−i)/M) − w⁺((M−i)/M)] − Σ u⁻(Xᵢ) [w⁻(i/M) − w⁻((i−1)/M)].
    """
    ordered = np.sort(np.asarray(samples, float), axis=-1)
    if not ordered.shape[-1]:
        raise ValueError("samples must hold at least one outcome")
    return _weighed(taste, ordered, *sample_weights(taste, ordered.shape[-1]))


def influence_of_samples(taste: Prospect, samples: Array) -> Array:
    """How much each of `[…, M]` samples moves their CPT value: φᵢ = M (V(X) − V(X with Xᵢ put at the reference)).

    The policy gradient of a CPT value is E[φ(X) ∇ log π] with φ(x) = ∫₀^{u⁺(x)} w⁺′(P(u⁺(X) > z)) dz, less the same of
    losses (Lepel and Barakat 2024, "Policy gradients for cumulative prospect theory in reinforcement learning").
    w′ has no bound at 0 and 1; here it is a difference over one sample's probability, which makes Σ φᵢ ∇ log πᵢ / M an
    unbiased gradient of the expectation of `value_of_samples`: what is taken off V(X) does not depend on Xᵢ.
    """

    def influence(ordered: Array) -> Array:
        gains, losses = sample_weights(taste, ordered.shape[-1])
        worth = utility(taste, ordered)
        up = np.diff(np.maximum(worth, 0.0), prepend=0.0, axis=-1)  # from one sample to the next greater one
        down = np.diff(np.minimum(worth, 0.0), append=0.0, axis=-1)  # and from each to the next, up to the reference
        risen = np.cumsum(up * gains, axis=-1)
        fallen = np.cumsum((down * losses)[..., ::-1], axis=-1)[..., ::-1]
        return ordered.shape[-1] * (risen - fallen)

    return _by_rank(samples, influence)


def check_level(level: float) -> None:
    """Refuse a share of outcomes outside (0, 1]."""
    if not 0 < level <= 1:
        raise ValueError(f"level must lie in (0, 1], got {level:g}")


def cvar(outcomes: Array, probabilities: Array, level: float) -> Array:
    """The mean of the worst share `level` of a distribution `[…, K]`, to `[…]`; level 1 is the mean."""
    check_level(level)
    outcomes, probabilities = _sorted(outcomes, probabilities)
    upto = np.minimum(np.cumsum(probabilities, axis=-1), level)
    upto[..., -1] = level  # whatever rounding has left over belongs to the largest
    share = np.diff(upto, axis=-1, prepend=0.0)
    mean: Array = (share * outcomes).sum(axis=-1) / level
    return mean


def cvar_of_samples(samples: Array, level: float) -> Array:
    """The same of `[…, M]` equally likely outcomes."""
    samples = np.asarray(samples, float)
    return cvar(samples, np.full(samples.shape, 1.0 / samples.shape[-1]), level)


def cvar_influence_of_samples(samples: Array, level: float) -> Array:
    """How much each of `[…, M]` samples moves their CVaR: VaR + min(Xᵢ − VaR, 0) / level, whose mean is the CVaR.

    The derivative with respect to a sample's probability, up to a constant (Tamar et al. 2015, "Optimizing the CVaR
    via sampling").
    """
    check_level(level)

    def influence(ordered: Array) -> Array:
        count = ordered.shape[-1]
        at = (
            int(np.ceil(level * count - 1e-9)) - 1
        )  # the worst `level` ends in this one; 0.07 · 100 is a little above 7
        threshold = ordered[..., at, None]
        return threshold + np.minimum(ordered - threshold, 0.0) / level

    return _by_rank(samples, influence)


def mean_variance(outcomes: Array, probabilities: Array, aversion: float) -> Array:
    """mean − aversion · variance of a distribution `[…, K]`, to `[…]`."""
    outcomes, probabilities = np.asarray(outcomes, float), np.asarray(probabilities, float)
    mean = (probabilities * outcomes).sum(axis=-1)
    variance = (probabilities * (outcomes - mean[..., None]) ** 2).sum(axis=-1)
    judged: Array = mean - aversion * variance
    return judged


def mean_variance_of_samples(samples: Array, aversion: float) -> Array:
    """The same of `[…, M]` equally likely outcomes."""
    samples = np.asarray(samples, float)
    return mean_variance(samples, np.full(samples.shape, 1.0 / samples.shape[-1]), aversion)


def mean_variance_influence_of_samples(samples: Array, aversion: float) -> Array:
    """How much each of `[…, M]` samples moves mean − aversion · variance: Xᵢ − aversion · (Xᵢ − mean)²."""
    samples = np.asarray(samples, float)
    apart = samples - samples.mean(axis=-1, keepdims=True)
    moved: Array = samples - aversion * apart**2
    return moved


def _by_rank(samples: Array, function: Callable[[Array], Array]) -> Array:
    """Apply a function of ordered samples `[…, M]` to samples in any order."""
    samples = np.asarray(samples, float)
    if not samples.shape[-1]:
        raise ValueError("samples must hold at least one outcome")
    order = np.argsort(samples, axis=-1, kind="stable")
    found = np.empty_like(samples)
    np.put_along_axis(found, order, function(np.take_along_axis(samples, order, -1)), -1)
    return found


def _weighed(taste: Prospect, outcomes: Array, gains: Array, losses: Array) -> Array:
    total: Array = (np.where(outcomes >= taste.reference, gains, losses) * utility(taste, outcomes)).sum(axis=-1)
    return total


def _sorted(outcomes: Array, probabilities: Array) -> tuple[Array, Array]:
    """Both with the smallest outcome first, after a look at the probabilities."""
    outcomes, probabilities = np.broadcast_arrays(np.asarray(outcomes, float), np.asarray(probabilities, float))
    total = probabilities.sum(axis=-1)
    if not ((probabilities >= 0).all() and np.allclose(total, 1.0, atol=1e-6)):
        raise ValueError(f"probabilities must be at least 0 and sum to 1, got sums of {np.unique(total)[:3]}")
    order = np.argsort(outcomes, axis=-1, kind="stable")
    return np.take_along_axis(outcomes, order, -1), np.take_along_axis(probabilities, order, -1)
