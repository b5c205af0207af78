"""Risk measures of a distribution and their gradients, compiled.

One formula covers cumulative prospect theory (CPT), CVaR and mean-variance; `RiskParameters` says which. For outcomes
z₁ ≤ … ≤ z_K with probabilities pᵢ it is V = Σ πᵢ u(zᵢ) − aversion · Var(Z), with decision weights (Tversky and Kahneman
1992) πᵢ = w⁺(P(Z ≥ zᵢ)) − w⁺(P(Z > zᵢ)) for gains and πᵢ = w⁻(P(Z ≤ zᵢ)) − w⁻(P(Z < zᵢ)) for losses. CVaR is the
weighting that gives the worst `level` of all probability the same weight and the rest none.

`risk_value` serves critics: it also gives gradients. `values`, `sample_values` and `sample_influences` serve
`prospect.py`, which checks and sorts NumPy arrays first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.core.group import RiskParameters
from coterie.core.jit import jit
from coterie.core.types import Array

NEAR = 1e-3  # closer to the reference than this, u′ is taken at this distance: it is unbounded at the reference
SMOOTHING = 1 / 256  # w′ is a difference between probabilities this far to both sides: it is unbounded at 0 and 1


# Utility and probability weighting --------------------------------------------------------------------
# Plain functions of numbers or arrays: `prospect.py` applies them to arrays, the compiled code to numbers.


def power_utility(gain: Any, alpha: float, beta: float, loss_aversion: float) -> Any:
    """u(x) = x^α for gains and −λ (−x)^β for losses; `gain` is counted from the reference."""
    return np.maximum(gain, 0.0) ** alpha - loss_aversion * np.maximum(-gain, 0.0) ** beta


def weight_probability(p: Any, gamma: float) -> Any:
    """w(p) = p^γ / (p^γ + (1 − p)^γ)^{1/γ}."""
    up, down = p**gamma, (1.0 - p) ** gamma
    return up / (up + down) ** (1.0 / gamma)


_power_utility = jit(power_utility)
_weight_probability = jit(weight_probability)


@jit
def _utility(risk: RiskParameters, outcome: float) -> float:
    """u(x), without a power where it is linear."""
    gain = outcome - risk.reference
    if risk.alpha == 1.0 and risk.beta == 1.0:
        return gain if gain >= 0 else risk.loss_aversion * gain
    return _power_utility(gain, risk.alpha, risk.beta, risk.loss_aversion)


@jit
def _weight(probability: float, gamma: float) -> float:
    """w(p), without a power where it is p itself; rounding outside [0, 1] is cut off."""
    p = min(max(probability, 0.0), 1.0)
    if gamma == 1.0 or p == 0.0 or p == 1.0:
        return p
    return _weight_probability(p, gamma)


@jit
def _weight_gains(risk: RiskParameters, at_least: float) -> float:
    """w⁺ of the probability of getting at least this."""
    if risk.level < 1.0:
        return max(1.0 - (1.0 - at_least) / risk.level, 0.0)
    return _weight(at_least, risk.gamma_gains)


@jit
def _weight_losses(risk: RiskParameters, at_most: float) -> float:
    """w⁻ of the probability of getting at most this."""
    if risk.level < 1.0:
        return min(at_most / risk.level, 1.0)
    return _weight(at_most, risk.gamma_losses)


@jit
def _marginal_utility(risk: RiskParameters, outcome: float) -> float:
    """u′(x)."""
    gain = outcome - risk.reference
    size = max(abs(gain), NEAR)
    if gain >= 0:
        return risk.alpha * size ** (risk.alpha - 1.0)
    return risk.loss_aversion * risk.beta * size ** (risk.beta - 1.0)


@jit
def _marginal_weight(risk: RiskParameters, probability: float, gain: bool) -> float:
    """w′(p), as a difference between two probabilities around p."""
    low, high = max(probability - SMOOTHING, 0.0), min(probability + SMOOTHING, 1.0)
    if gain:
        return (_weight_gains(risk, high) - _weight_gains(risk, low)) / (high - low)
    return (_weight_losses(risk, high) - _weight_losses(risk, low)) / (high - low)


# Distributions by rank --------------------------------------------------------------------------------


class Ranked(NamedTuple):
    """A distribution's outcomes in ascending order."""

    order: Array  # [K] int64: index of the i-th smallest outcome
    below: Array  # [K + 1]: P(Z < the i-th smallest outcome); the last is 1
    above: Array  # [K + 1]: P(Z ≥ the i-th smallest outcome); the last is 0
    weight: Array  # [K]: decision weights π
    utility: Array  # [K]: u(z)
    steepness: Array  # [K]: w′ at each outcome


@jit
def make_ranked(count: int) -> Ranked:
    """Room for K outcomes, which are taken to be in ascending order."""
    return Ranked(
        np.arange(count),
        np.empty(count + 1),
        np.empty(count + 1),
        np.empty(count),
        np.empty(count),
        np.empty(count),
    )


@jit
def _weigh(risk: RiskParameters, outcomes: Array, ranked: Ranked) -> float:
    """Write decision weights and utilities; returns Σ πᵢ u(zᵢ)."""
    total = 0.0
    for i in range(len(outcomes)):
        outcome = outcomes[ranked.order[i]]
        if outcome >= risk.reference:
            weight = _weight_gains(risk, ranked.above[i]) - _weight_gains(risk, ranked.above[i + 1])
        else:
            weight = _weight_losses(risk, ranked.below[i + 1]) - _weight_losses(risk, ranked.below[i])
        ranked.weight[i] = weight
        ranked.utility[i] = _utility(risk, outcome)
        total += weight * ranked.utility[i]
    return total


@jit
def _differentiate(risk: RiskParameters, outcomes: Array, ranked: Ranked, steepness: Array, slopes: Array) -> None:
    """Write ∂(Σ π u)/∂pᵢ up to a constant, from u at each rank and the steepness of w there.

    φ(z) = ∫₀^{u⁺(z)} w⁺′(P(u⁺(Z) > x)) dx, less the same of losses (Lepel and Barakat 2024, "Policy gradients for
    cumulative prospect theory in reinforcement learning").
    """
    rise = last = 0.0
    for i in range(len(outcomes)):  # gains from the smallest to the greatest
        at = ranked.order[i]
        if outcomes[at] >= risk.reference:
            rise += (ranked.utility[i] - last) * steepness[i]
            last = ranked.utility[i]
        slopes[at] = rise
    fall = last = 0.0
    for i in range(len(outcomes) - 1, -1, -1):  # losses from the smallest to the greatest
        at = ranked.order[i]
        if outcomes[at] < risk.reference:
            fall += (ranked.utility[i] - last) * steepness[i]
            last = ranked.utility[i]
        slopes[at] += fall


@jit
def _moments(probabilities: Array, outcomes: Array) -> tuple[float, float]:
    """E[Z] and E[Z²]."""
    mean = square = 0.0
    for i in range(len(outcomes)):
        mean += probabilities[i] * outcomes[i]
        square += probabilities[i] * outcomes[i] * outcomes[i]
    return mean, square


# For critics ------------------------------------------------------------------------------------------


class RiskSlopes(NamedTuple):
    """The gradient of a risk measure, `[K]` each, and room to compute it."""

    outcome: Array
    probability: Array  # up to a constant: probabilities sum to 1
    ranked: Ranked


@jit
def make_slopes(count: int) -> RiskSlopes:
    """Room for K outcomes."""
    return RiskSlopes(np.empty(count), np.empty(count), make_ranked(count))


@jit
def _rank(probabilities: Array, outcomes: Array, ranked: Ranked) -> None:
    """Sort by insertion: outcomes are few and nearly in order."""
    order = ranked.order
    for i in range(len(outcomes)):
        k = i
        while k > 0 and outcomes[order[k - 1]] > outcomes[i]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
    below = 0.0
    ranked.below[0], ranked.above[0] = below, 1.0
    for i in range(len(outcomes)):
        below = below + probabilities[order[i]]
        ranked.below[i + 1], ranked.above[i + 1] = below, 1.0 - below


@jit
def _smooth_steepness(risk: RiskParameters, probabilities: Array, outcomes: Array, ranked: Ranked) -> None:
    """Write w′ at each outcome; 0 where the outcome's cumulative probability is 1 in any case."""
    count = len(outcomes)
    at_most = ranked.below[count]
    for i in range(count - 1, -1, -1):
        at = ranked.order[i]
        if outcomes[at] >= risk.reference:
            ranked.steepness[i] = _marginal_weight(risk, ranked.above[i], True) if i > 0 else 0.0
        else:
            ranked.steepness[i] = _marginal_weight(risk, at_most, False) if i < count - 1 else 0.0
        at_most -= probabilities[at]


@jit
def risk_value(risk: RiskParameters, probabilities: Array, outcomes: Array, slopes: RiskSlopes) -> float:
    """The value of one distribution, `probabilities` and `outcomes` `[K]`; writes its gradient."""
    mean, square = _moments(probabilities, outcomes)
    ranked = slopes.ranked
    _rank(probabilities, outcomes, ranked)
    total = _weigh(risk, outcomes, ranked)
    _smooth_steepness(risk, probabilities, outcomes, ranked)
    _differentiate(risk, outcomes, ranked, ranked.steepness, slopes.probability)
    for i in range(len(outcomes)):
        at = ranked.order[i]
        outcome = outcomes[at]
        spread = 2 * risk.aversion * probabilities[at] * (outcome - mean)
        slopes.outcome[at] = ranked.weight[i] * _marginal_utility(risk, outcome) - spread
        slopes.probability[at] -= risk.aversion * outcome * (outcome - 2 * mean)
    return total - risk.aversion * (square - mean * mean)


# For arrays whose rows are in ascending order -----------------------------------------------------------


@jit
def values(risk: RiskParameters, probabilities: Array, outcomes: Array) -> Array:
    """Values `[R]` of distributions `[R, K]`."""
    rows, count = outcomes.shape
    found, ranked = np.empty(rows), make_ranked(count)
    for r in range(rows):
        ranked.below[0], ranked.above[count] = 0.0, 0.0
        for i in range(count):  # sums from both ends, so that both are exact near 0
            ranked.below[i + 1] = ranked.below[i] + probabilities[r, i]
            ranked.above[count - 1 - i] = ranked.above[count - i] + probabilities[r, count - 1 - i]
        mean, square = _moments(probabilities[r], outcomes[r])
        found[r] = _weigh(risk, outcomes[r], ranked) - risk.aversion * (square - mean * mean)
    return found


@jit
def _rank_samples(ranked: Ranked) -> None:
    """Write the cumulative probabilities of equally likely outcomes."""
    count = len(ranked.order)
    for i in range(count + 1):
        ranked.below[i], ranked.above[i] = i / count, (count - i) / count


@jit
def sample_values(risk: RiskParameters, samples: Array) -> Array:
    """Values `[R]` of equally likely outcomes `[R, M]` (Prashanth et al. 2016, eqs. 4 and 5)."""
    rows, count = samples.shape
    found, ranked, even = np.empty(rows), make_ranked(count), np.full(count, 1.0 / count)
    _rank_samples(ranked)
    for r in range(rows):
        mean, square = _moments(even, samples[r])
        found[r] = _weigh(risk, samples[r], ranked) - risk.aversion * (square - mean * mean)
    return found


@jit
def _differentiate_worst(outcomes: Array, ranked: Ranked, slopes: Array) -> None:
    """Write the CVaR less the CVaR with one outcome put above all others, for each of the ascending `outcomes`.

    Where the greatest outcome has a weight of its own, it is put at 0.
    """
    fall = last = 0.0
    for i in range(len(outcomes) - 1, -1, -1):
        fall += (outcomes[i] - last) * ranked.weight[i]
        slopes[i] = fall
        last = outcomes[i]


@jit
def sample_influences(risk: RiskParameters, samples: Array) -> Array:
    """The influence of each of `[R, M]` samples on the value of its row; see `prospect.influence_of_samples`."""
    rows, count = samples.shape
    found, ranked = np.empty((rows, count)), make_ranked(count)
    spread = risk.aversion * count / max(count - 1, 1)
    _rank_samples(ranked)
    for r in range(rows):
        row = samples[r]
        _weigh(risk, row, ranked)
        if risk.level < 1.0:
            _differentiate_worst(row, ranked, found[r])
        else:
            _differentiate(risk, row, ranked, ranked.weight, found[r])
        mean = row.mean()
        for i in range(count):
            found[r, i] = count * found[r, i] - spread * (row[i] - mean) ** 2
    return found
