"""Cumulative prospect theory and other risk measures of a distribution of outcomes, for NumPy arrays.

Utility and weighting are those of Tversky and Kahneman (1992). Values are rank-dependent: probabilities are weighted
from the extreme outcomes inwards, gains and losses apart. The formulas are in `risk_kernels.py`; this module checks and
sorts arrays. Every function takes leading batch axes, `[…, K]`, and evaluates the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from coterie.core.group import RiskParameters
from coterie.core.types import Array
from coterie.core.validation import positive
from coterie.preferences import risk_kernels

LEAST_GAMMA = 0.28  # below about 0.279 the weighting is not monotone


@dataclass(frozen=True)
class Prospect:
    """Parameters of CPT. Defaults are the medians of Tversky and Kahneman (1992)."""

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

    def risk_parameters(self) -> RiskParameters:
        """The same numbers as the compiled functions take them."""
        return RiskParameters(
            self.alpha, self.beta, self.loss_aversion, self.reference, self.gamma_gains, self.gamma_losses
        )


NEUTRAL = Prospect(1.0, 1.0, 1.0, 1.0, 1.0)  # values a distribution by its mean


def power(exponent: float) -> Prospect:
    """The utility x^r of gains, without probability weighting: risk-averse below 1."""
    return Prospect(exponent, exponent, 1.0, 1.0, 1.0)


# What auction theory needs ----------------------------------------------------------------------------


def utility(prospect: Prospect, outcome: Array | float) -> Array:
    """u(x), counted from the reference."""
    gain = np.asarray(outcome, float) - prospect.reference
    found: Array = risk_kernels.power_utility(gain, prospect.alpha, prospect.beta, prospect.loss_aversion)
    return found


def weight(probability: Array | float, gamma: float) -> Array:
    """w(p); rounding just outside [0, 1] is cut off."""
    p = np.clip(np.asarray(probability, float), 0.0, 1.0)
    weighted: Array = p if gamma == 1.0 else risk_kernels.weight_probability(p, gamma)
    return weighted


def lottery(prospect: Prospect, better: Array | float, worse: Array | float, chance: Array | float) -> Array:
    """The CPT value of getting `better` with probability `chance` and else `worse`, which is no greater.

    The same as `value` with two outcomes, without sorting.
    """
    up, down = utility(prospect, better), utility(prospect, worse)
    gain, loss = weight(chance, prospect.gamma_gains), weight(1.0 - np.asarray(chance), prospect.gamma_losses)
    better_weight = np.where(np.asarray(better) >= prospect.reference, gain, 1.0 - loss)
    worse_weight = np.where(np.asarray(worse) >= prospect.reference, 1.0 - gain, loss)
    return better_weight * up + worse_weight * down


# Values of distributions and samples --------------------------------------------------------------------


def value(risk: RiskParameters, outcomes: Array, probabilities: Array) -> Array:
    """The value of distributions: `outcomes` and `probabilities` `[…, K]`, the latter summing to 1, to `[…]`."""
    outcomes, probabilities = np.broadcast_arrays(np.asarray(outcomes, float), np.asarray(probabilities, float))
    total = probabilities.sum(axis=-1)
    if not ((probabilities >= 0).all() and np.allclose(total, 1.0, atol=1e-6)):
        raise ValueError(f"probabilities must be at least 0 and sum to 1, got sums of {np.unique(total)[:3]}")
    order = np.argsort(outcomes, axis=-1, kind="stable")
    rows = (np.take_along_axis(array, order, -1).reshape(-1, order.shape[-1]) for array in (probabilities, outcomes))
    found: Array = risk_kernels.values(_as_floats(risk), *rows).reshape(total.shape)
    return found


def value_of_samples(risk: RiskParameters, samples: Array) -> Array:
    """The value estimated from `[…, M]` samples, or from as many quantiles that are equally far apart, to `[…]`.

    For CPT the estimator of Prashanth et al. (2016), "Cumulative prospect theory meets reinforcement learning", eqs. 4
    and 5: with X₁ ≤ … ≤ X_M, Σ u⁺(Xᵢ) [w⁺((M+1−i)/M) − w⁺((M−i)/M)] − Σ u⁻(Xᵢ) [w⁻(i/M) − w⁻((i−1)/M)].
    """
    ordered = np.sort(_checked(samples), axis=-1)
    found: Array = risk_kernels.sample_values(_as_floats(risk), ordered.reshape(-1, ordered.shape[-1]))
    return found.reshape(ordered.shape[:-1])


def influence_of_samples(risk: RiskParameters, samples: Array) -> Array:
    """The influence of each of `[…, M]` samples on their value: the weights of ∇ log π in a policy gradient.

    In all of them Σ φᵢ ∇ log πᵢ / M is an unbiased gradient of the expectation of `value_of_samples`, also with few
    samples: φᵢ is M V(X) less what does not depend on Xᵢ.

    CPT: φᵢ = M (V(X) − V(X with Xᵢ put at the reference)). With many samples it is the φ whose E[φ(X) ∇ log π] is the
    policy gradient of a CPT value (Lepel and Barakat 2024; see `risk_kernels._differentiate`). w′ is unbounded at 0
    and 1; here it is a difference over one sample's probability.

    CVaR: φᵢ = M (V(X) − V(X with Xᵢ put above all others)). With many samples it is min(Xᵢ − VaR, 0) / level (Tamar et
    al. 2015, "Optimizing the CVaR via sampling"), with the next sample above the VaR in its place: with the VaR itself
    fewer than 1 / level samples would all get the same.

    Mean-variance: φᵢ = Xᵢ − aversion · M / (M − 1) · (Xᵢ − mean)².
    """
    samples = _checked(samples)
    order = np.argsort(samples, axis=-1, kind="stable")
    rows = np.take_along_axis(samples, order, -1).reshape(-1, samples.shape[-1])
    found = np.empty_like(samples)
    np.put_along_axis(found, order, risk_kernels.sample_influences(_as_floats(risk), rows).reshape(samples.shape), -1)
    return found


def _as_floats(risk: RiskParameters) -> RiskParameters:
    """Numba compiles anew for every mixture of whole and real numbers."""
    return RiskParameters(*map(float, risk))


def _checked(samples: Array) -> Array:
    samples = np.asarray(samples, float)
    if not samples.shape[-1]:
        raise ValueError("samples must hold at least one outcome")
    return samples
