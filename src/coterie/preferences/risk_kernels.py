"""What a distribution is worth to somebody, and how that changes with its outcomes and their chances: compiled.

One formula serves cumulative prospect theory, CVaR and mean-variance (`preferences.py` fills in its numbers). Outcomes
z₁ ≤ … ≤ z_K come with chances pᵢ; V = Σ πᵢ u(zᵢ) − aversion · Var(z), where πᵢ = w⁺(P(Z ≥ zᵢ)) − w⁺(P(Z > zᵢ)) for
gains and w⁻(P(Z ≤ zᵢ)) − w⁻(P(Z < zᵢ)) for losses. `prospect.py` has the same in NumPy, without slopes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.group import RiskParameters
from coterie.core.types import Array

NEAR = 1e-3  # closer to the reference than this the utility's slope is that at this distance: it has no bound there
APART = 1 / 256  # w is sloped as between chances this far to both sides: its own slope has no bound at 0 and 1


class Slopes(NamedTuple):
    """How a value changes, `[K]` each, and room to work in."""

    outcome: Array
    chance: Array  # up to a number that is the same for all: chances sum to 1
    order: Array  # int64: the outcomes from the smallest on


@njit(cache=True, error_model="numpy")
def make_slopes(count: int) -> Slopes:
    """Room for K outcomes."""
    return Slopes(np.empty(count), np.empty(count), np.empty(count, np.int64))


@njit(cache=True, error_model="numpy")
def _weigh(chance: float, gamma: float) -> float:
    """w(p); rounding outside [0, 1] is cut off."""
    p = min(max(chance, 0.0), 1.0)
    if gamma == 1.0 or p == 0.0 or p == 1.0:
        return p
    up, down = p**gamma, (1.0 - p) ** gamma
    return up / (up + down) ** (1.0 / gamma)


@njit(cache=True, error_model="numpy")
def _gains(judge: RiskParameters, above: float) -> float:
    """w⁺ of the chance to get at least this."""
    if judge.level < 1.0:
        return max(1.0 - (1.0 - above) / judge.level, 0.0)
    return _weigh(above, judge.gamma_gains)


@njit(cache=True, error_model="numpy")
def _losses(judge: RiskParameters, below: float) -> float:
    """w⁻ of the chance to get at most this."""
    if judge.level < 1.0:
        return min(below / judge.level, 1.0)
    return _weigh(below, judge.gamma_losses)


@njit(cache=True, error_model="numpy")
def _steepness(judge: RiskParameters, chance: float, gain: bool) -> float:
    """The slope of w there, between two chances around it."""
    low, high = max(chance - APART, 0.0), min(chance + APART, 1.0)
    if gain:
        return (_gains(judge, high) - _gains(judge, low)) / (high - low)
    return (_losses(judge, high) - _losses(judge, low)) / (high - low)


@njit(cache=True, error_model="numpy")
def _utility(judge: RiskParameters, outcome: float) -> float:
    gain = outcome - judge.reference
    if gain >= 0:
        return gain**judge.alpha if judge.alpha != 1.0 else gain
    return -judge.loss_aversion * (-gain) ** judge.beta


@njit(cache=True, error_model="numpy")
def _marginal(judge: RiskParameters, outcome: float) -> float:
    """The slope of the utility."""
    gain = outcome - judge.reference
    size = max(abs(gain), NEAR)
    if gain >= 0:
        return judge.alpha * size ** (judge.alpha - 1.0)
    return judge.loss_aversion * judge.beta * size ** (judge.beta - 1.0)


@njit(cache=True, error_model="numpy")
def judge_row(judge: RiskParameters, chances: Array, outcomes: Array, slopes: Slopes) -> float:
    """The value of one distribution, `chances` and `outcomes` `[K]`; writes its slopes."""
    count, order = len(outcomes), slopes.order
    mean = square = 0.0
    for i in range(count):  # few, and nearly in order: insertion is quick
        mean += chances[i] * outcomes[i]
        square += chances[i] * outcomes[i] * outcomes[i]
        k = i
        while k > 0 and outcomes[order[k - 1]] > outcomes[i]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
    total, before, rise, last = 0.0, 0.0, 0.0, 0.0
    for i in range(count):  # from the smallest: what all gains from here on owe to being likely
        at = order[i]
        upto, worth = before + chances[at], _utility(judge, outcomes[at])
        if outcomes[at] >= judge.reference:
            weight = _gains(judge, 1.0 - before) - _gains(judge, 1.0 - upto)
            if i > 0:  # at the first, one is certain to get at least this
                rise += (worth - last) * _steepness(judge, 1.0 - before, True)
            last = worth
        else:
            weight = _losses(judge, upto) - _losses(judge, before)
        total += weight * worth
        apart = outcomes[at] - mean
        slopes.outcome[at] = weight * _marginal(judge, outcomes[at]) - 2 * judge.aversion * chances[at] * apart
        slopes.chance[at] = rise - judge.aversion * outcomes[at] * (outcomes[at] - 2 * mean)
        before = upto
    fall = last = 0.0
    for i in range(count - 1, -1, -1):  # from the greatest: the same of all losses down to here
        at = order[i]
        if outcomes[at] < judge.reference:
            worth = _utility(judge, outcomes[at])
            if i < count - 1:
                fall += (worth - last) * _steepness(judge, before, False)
            last = worth
        slopes.chance[at] += fall
        before -= chances[at]
    return total - judge.aversion * (square - mean * mean)


@njit(cache=True, error_model="numpy")
def judge_rows(judge: RiskParameters, chances: Array, outcomes: Array) -> tuple[Array, Array, Array]:
    """Values `[M]` of distributions `[M, K]`, and their slopes by chance and by outcome, `[M, K]`."""
    rows, count = outcomes.shape
    values, by_chance, by_outcome = np.empty(rows), np.empty((rows, count)), np.empty((rows, count))
    slopes = make_slopes(count)
    for m in range(rows):
        values[m] = judge_row(judge, chances[m], outcomes[m], slopes)
        for k in range(count):
            by_chance[m, k], by_outcome[m, k] = slopes.chance[k], slopes.outcome[k]
    return values, by_chance, by_outcome
