"""Bayes–Nash equilibria of sealed-bid auctions, as references for learned bidders.

Valuations are private, independent draws from one distribution F. Bidders may have risk preferences of prospect theory
(`preferences/prospect.py`), applied interim with reference 0. N equal bidders have closed formulas; bidders with
different risk preferences are solved numerically, with a bound on what deviating gains. Budgets and repeated rounds are
not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.integrate import solve_ivp

from coterie.core.types import Array, CoterieError
from coterie.preferences.prospect import NEUTRAL, Prospect, weight
from coterie.worlds.auction.best_responses import (
    AuctionModel,
    BidFunction,
    WinProbability,
    best_response,
    interim_utility,
    rank_grid,
    win_probability_against,
)

CELLS, NODES = 32, 8  # of the integrals: cells, smaller towards both ends, and Gauss–Legendre nodes per cell
START = 1e-14  # −log of the rank that stands for 1, where the slope of probability weighting is infinite
HALVINGS = 42  # bisections of the interval that contains the highest bid


# Symmetric --------------------------------------------------------------------------------------------


def symmetric_bid(
    model: AuctionModel, values: Array | float, risk: Prospect = NEUTRAL, rank: Array | float | None = None
) -> Array:
    """The bids of the symmetric equilibrium at any valuations; 0 where not bidding is better.

    With G(v) = F(v)^{N−1}, the probability that no rival has a higher valuation, reserve ρ and H = w(G)^{1/α}:

    - first price: b(v) = v − ∫_ρ^v H(x) dx / H(v), since w(G) (v − b)^α is maximal where w(G)^{1/α} (v − b) is;
      risk-neutral bidders have H = G, a utility x^r has H = G^{1/r};
    - second price: b(v) = v for every risk preference;
    - all-pay, risk-neutral bidders only: b(v) = v G(v) − ∫_{v*}^v G(x) dx for v ≥ v*, where v* G(v*) = ρ.

    If F has atoms there is no equilibrium in pure strategies. `rank`, drawn uniformly from (P(V < v), P(V ≤ v)], then
    replaces F(v), and b is the equilibrium in mixed strategies.
    """
    values = np.asarray(values, float)
    rank = model.valuations.cdf(values) if rank is None else np.asarray(rank, float)
    if model.rule == "second_price":
        return values.copy()
    if risk.reference != 0:
        raise ValueError(f"symmetric_bid needs reference 0, got {risk.reference:g}; use best_response")
    if model.rule == "all_pay" and (risk.alpha, risk.gamma_gains) != (1.0, 1.0):
        raise ValueError("symmetric_bid solves all_pay for risk-neutral bidders only; use best_response")
    weighted, entry = _transformed_probability(model, risk, rank), entry_rank(model)
    first = float(model.valuations.quantile(entry)) if model.rule == "all_pay" else model.reserve
    area = _integral(model, risk, np.minimum(np.maximum(first, model.valuations.low), values), values)
    # At the lowest valuation the formula is 0 / 0; its limit is to bid the valuation.
    bids = values - np.where(weighted > 0, area / np.where(weighted > 0, weighted, 1.0), 0.0)
    if model.rule == "all_pay":
        bids = bids * weighted
    return np.where((rank < entry) | (values < model.reserve), 0.0, np.maximum(bids, 0.0))


def symmetric_equilibrium(model: AuctionModel, risk: Prospect = NEUTRAL, points: int = 1001) -> BidFunction:
    """The symmetric equilibrium as a bid function."""
    at = rank_grid(model.valuations, points, entry_rank(model))
    values = model.valuations.quantile(at)
    return BidFunction(at, values, symmetric_bid(model, values, risk, at))


def entry_rank(model: AuctionModel) -> float:
    """The lowest rank that bids: v ≥ reserve, and v G(v) ≥ reserve in all-pay auctions."""
    if model.rule != "all_pay" or model.reserve == 0:
        return float(model.valuations.below(model.reserve))
    low, high = 0.0, 1.0
    for _ in range(60):
        rank = (low + high) / 2
        expected_value = float(model.valuations.quantile(rank)) * rank ** (model.bidders - 1)
        low, high = (low, rank) if expected_value >= model.reserve else (rank, high)
    return high


def _transformed_probability(model: AuctionModel, risk: Prospect, rank: Array) -> Array:
    """H at a rank: the weighted win probability to the power 1/α."""
    found: Array = weight(rank ** (model.bidders - 1), risk.gamma_gains) ** (1.0 / risk.alpha)
    return found


def _integral(model: AuctionModel, risk: Prospect, start: Array, end: Array) -> Array:
    """∫ H(F(x)) dx from `start` to `end`, elementwise."""
    if model.valuations.atoms:  # F is constant between atoms
        points = model.valuations.values[::2]
        inside = np.clip(points, start[..., None], end[..., None])
        held = _transformed_probability(model, risk, model.valuations.cdf(points[:-1]))
        exact: Array = (np.diff(inside, axis=-1) * held).sum(axis=-1)
        return exact
    share, weights = _quadrature()
    x = start[..., None] + (end - start)[..., None] * share
    area: Array = (_transformed_probability(model, risk, model.valuations.cdf(x)) * weights).sum(axis=-1) * (
        end - start
    )
    return area


def _quadrature() -> tuple[Array, Array]:
    """Nodes in (0, 1) and weights of a composite Gauss–Legendre rule."""
    even = np.linspace(0.0, 1.0, CELLS + 1)
    edges = even**3 / (even**3 + (1 - even) ** 3)
    x, weights = np.polynomial.legendre.leggauss(NODES)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), (half * weights).ravel()


# Asymmetric -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AsymmetricEquilibrium:
    """One bid function for each risk preference, and a bound on what deviating gains."""

    bid_functions: tuple[BidFunction, ...]
    counts: tuple[int, ...]  # bidders with each risk preference
    residual: float  # the largest utility that any bidder gains by another bid, over all valuations

    @property
    def bidders(self) -> list[BidFunction]:
        """One bid function for each bidder."""
        return [
            bid_function
            for bid_function, count in zip(self.bid_functions, self.counts, strict=True)
            for _ in range(count)
        ]

    def win_probability(self, index: int) -> WinProbability:
        """The win probability of a bidder with risk preference number `index`."""
        own = sum(self.counts[:index])
        return win_probability_against(
            [bid_function for bidder, bid_function in enumerate(self.bidders) if bidder != own]
        )


def asymmetric_equilibrium(
    model: AuctionModel, risks: Sequence[Prospect], counts: Sequence[int], points: int = 1001
) -> AsymmetricEquilibrium:
    """The first-price equilibrium in which `counts[i]` bidders have the risk preference `risks[i]`.

    Let y_i(b) = −log F(v_i(b)) for the valuation v_i at which risk preference i bids b, and p_i the win probability.
    The first-order conditions of all bidders are a system of differential equations in b,

        −y_i′ = S − R_i,   R_i = 1 / (ε_i(p_i) (v_i − b)),   S = Σ_j n_j R_j / (Σ_j n_j − 1),   ε = p w′(p) / (α w(p)),

    solved downwards from the highest bid, where all y are 0. A risk preference whose right side is negative there does
    not bid that high and joins further down. The highest bid is found by bisection: if it is too high, some bid reaches
    its valuation before the lowest bid is reached (Marshall et al. 1994, here with risk preferences).
    """
    if model.rule != "first_price":
        raise ValueError(f"rule: different risk preferences are solved for first_price only, got {model.rule}")
    if sum(counts) != model.bidders or min(counts) < 1 or len(counts) != len(risks):
        raise ValueError(
            f"counts must be one per risk preference and sum to {model.bidders} bidders, got {list(counts)}"
        )
    if model.valuations.atoms:
        raise ValueError(
            "valuations: different risk preferences are solved for continuous distributions only, got points"
        )
    if any(risk.reference != 0 for risk in risks):
        raise ValueError("reference: different risk preferences are solved for reference 0 only")
    equations = _BidEquations(model, risks, counts)
    low, high = equations.lowest, model.valuations.high
    for _ in range(HALVINGS):
        top = (low + high) / 2
        low, high = (low, top) if equations.integrate(top)[2] else (top, high)
    bids, y, _ = equations.integrate(low, points)
    at = rank_grid(model.valuations, points, entry_rank(model))
    values = model.valuations.quantile(at)
    bid_functions = tuple(BidFunction(at, values, _bids_at_ranks(at, values, bids, own, equations.lowest)) for own in y)
    table = AsymmetricEquilibrium(bid_functions, tuple(counts), 0.0)
    left = [max_regret(model, risk, bid_functions[i], table.win_probability(i)) for i, risk in enumerate(risks)]
    return replace(table, residual=max(left))


class _BidEquations:
    """The right side of the differential equations, in Python floats, which are faster for so few numbers."""

    def __init__(self, model: AuctionModel, risks: Sequence[Prospect], counts: Sequence[int]) -> None:
        self.valuations = model.valuations
        self.lowest = max(model.reserve, model.valuations.low)
        self.risks = [(risk.alpha, risk.gamma_gains, count) for risk, count in zip(risks, counts, strict=True)]

    def value(self, y: float) -> float:
        """The valuation at rank e^{−y}."""
        return float(np.interp(math.exp(-y), self.valuations.levels, self.valuations.values))

    def __call__(self, bid: float, y: Array) -> list[float]:
        """dy/db."""
        all_y = [max(float(own), START) for own in y]
        total = sum(count * own for own, (_, _, count) in zip(all_y, self.risks, strict=True))
        rates = []
        for own, (alpha, gamma, _) in zip(all_y, self.risks, strict=True):
            margin = max(self.value(own) - bid, 1e-12)
            rates.append(1.0 / (_elasticity(total - own, gamma) / alpha * margin))
        active = set(range(len(rates)))
        while True:
            bidders = sum(self.risks[i][2] for i in active)
            pull = sum(self.risks[i][2] * rates[i] for i in active) / max(bidders - 1, 1e-12)
            waiting = {i for i in active if pull < rates[i] and all_y[i] <= 2 * START}
            if not waiting or waiting == active:
                return [rates[i] - pull if i in active else 0.0 for i in range(len(rates))]
            active -= waiting

    def integrate(self, top: float, points: int = 0) -> tuple[Array, Array, bool]:
        """Solve downwards from `top`: bids [B], y [risks, B], and whether a bid reached its valuation on the way.

        Without `points` the bids are those of the solver's steps.
        """

        def reached(bid: float, y: Array) -> float:
            return min(self.value(float(own)) for own in y) - bid - 1e-6 * (top - self.lowest)

        reached.terminal = True  # type: ignore[attr-defined]  # SciPy reads this attribute of an event function
        span, start = (top, self.lowest + 1e-9), np.full(len(self.risks), START)
        if top <= span[1]:
            return np.array([top]), start[:, None], False
        even = np.linspace(0.0, 1.0, points)
        bids = np.clip(top - (top - span[1]) * even**2 * (3 - 2 * even), span[1], top) if points else None
        path = solve_ivp(self, span, start, rtol=1e-8, atol=1e-13, events=reached, t_eval=bids)
        return path.t, path.y, path.status == 1


def _elasticity(y: float, gamma: float) -> float:
    """p w′(p) / w(p) at p = e^{−y}."""
    if gamma == 1.0:
        return 1.0
    p, rest = math.exp(-y), max(-math.expm1(-y), 1e-300)
    up, down = p**gamma, rest**gamma
    return gamma - (up - p * rest ** (gamma - 1.0)) / (up + down)


def _bids_at_ranks(at: Array, values: Array, bids: Array, y: Array, lowest: float) -> Array:
    """The solution interpolated at ranks; its last and least accurate part is replaced by a line to the lowest bid."""
    start = int(np.flatnonzero(y <= 2 * START).max())  # this risk preference does not bid higher
    bids, own = bids[start:], np.exp(-y[start:])
    if not (np.diff(own) <= 0).all():
        raise CoterieError("no equilibrium with continuous bid functions was found")
    first = np.interp(lowest, values, at)
    found = np.interp(at, np.append(own, first)[::-1], np.append(bids, lowest)[::-1])
    return np.where(values < lowest, 0.0, np.minimum(found, values))


def max_regret(
    model: AuctionModel, risk: Prospect, bid_function: BidFunction, win_probability: WinProbability
) -> float:
    """The largest utility that a bidder with this bid function gains by another bid, over all valuations."""
    own = interim_utility(model, risk, bid_function.values, bid_function.bids, win_probability)
    return float((best_response(model, risk, bid_function.values, win_probability).utility - own).max())
