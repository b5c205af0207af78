"""Bayes–Nash equilibria of sealed-bid auctions, to hold learned bidders against.

Valuations are private, independent and of one distribution F; bidders may have a taste for risk (`prospect.py`), judged
interim with reference 0. With N equal bidders there are formulas; a table of several tastes is solved numerically and
comes with what it still leaves on the table. Budgets and repeated rounds are not treated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.integrate import solve_ivp

from coterie.core.types import Array, CoterieError
from coterie.preferences.prospect import NEUTRAL, Prospect, weight
from coterie.worlds.auction.best_responses import Curve, Market, WinChance, against, best_response, interim, ranks
from coterie.worlds.auction.valuations import Valuations

CELLS, NODES = 32, 8  # of the integrals: cells, smaller towards both ends, and Gauss–Legendre nodes in each
START = 1e-14  # −log of a rank that counts as 1: at 1 itself the slope of probability weighting is infinite
HALVINGS = 42  # of the interval that holds the highest bid


# Equal bidders ------------------------------------------------------------------------------------------


def symmetric_bid(
    market: Market, values: Array | float, taste: Prospect = NEUTRAL, rank: Array | float | None = None
) -> Array:
    """What everybody bids in the symmetric equilibrium, at any valuations; 0 where it is better to stay away.

    With G(v) = F(v)^{N−1}, the chance that nobody values it more, reserve ρ and H = w(G)^{1/α}:

    - first price: b(v) = v − ∫_ρ^v H(x) dx / H(v), since w(G) (v − b)^α is greatest where w(G)^{1/α} (v − b) is;
      neutral bidders have H = G, a utility x^r has H = G^{1/r};
    - second price: b(v) = v, whatever the taste;
    - all-pay, neutral bidders only: b(v) = v G(v) − ∫_{v*}^v G(x) dx from v* G(v*) = ρ on.

    Where single valuations have a probability of their own there is no equilibrium in pure bids. `rank`, drawn
    uniformly from (P(V < v), P(V ≤ v)], then takes the place of F(v), and b is the equilibrium in mixed bids.
    """
    values = np.asarray(values, float)
    rank = market.valuations.cdf(values) if rank is None else np.asarray(rank, float)
    if market.rule == "second_price":
        return values.copy()
    if taste.reference != 0:
        raise ValueError(f"the formula needs reference 0, got {taste.reference:g}; use best_response")
    if market.rule == "all_pay" and (taste.alpha, taste.gamma_gains) != (1.0, 1.0):
        raise ValueError("the formula of all-pay auctions is that of neutral bidders; use best_response")
    chance, entry = _winning(market, taste, rank), entry_rank(market)
    first = float(market.valuations.quantile(entry)) if market.rule == "all_pay" else market.reserve
    area = _area(market, taste, np.minimum(np.maximum(first, market.valuations.low), values), values)
    # At the lowest valuation nothing is won and 0 is divided by 0: there it is worth its bid.
    bids = values - np.where(chance > 0, area / np.where(chance > 0, chance, 1.0), 0.0)
    if market.rule == "all_pay":
        bids = bids * chance
    return np.where((rank < entry) | (values < market.reserve), 0.0, np.maximum(bids, 0.0))


def symmetric(market: Market, taste: Prospect = NEUTRAL, points: int = 1001) -> Curve:
    """The same as a curve."""
    at = ranks(market.valuations, points, entry_rank(market))
    values = market.valuations.quantile(at)
    return Curve(at, values, symmetric_bid(market, values, taste, at))


def entry_rank(market: Market) -> float:
    """The lowest rank that bids at all: v ≥ reserve, and v G(v) ≥ reserve where losers pay, too."""
    if market.rule != "all_pay" or market.reserve == 0:
        return float(market.valuations.below(market.reserve))
    low, high = 0.0, 1.0
    for _ in range(60):
        rank = (low + high) / 2
        worth = float(market.valuations.quantile(rank)) * rank ** (market.bidders - 1)
        low, high = (low, rank) if worth >= market.reserve else (rank, high)
    return high


def _winning(market: Market, taste: Prospect, rank: Array) -> Array:
    """H at a rank: the weighted chance to win, with the curvature of gains moved into it."""
    found: Array = weight(rank ** (market.bidders - 1), taste.gamma_gains) ** (1.0 / taste.alpha)
    return found


def _area(market: Market, taste: Prospect, start: Array, end: Array) -> Array:
    """∫ H(F(x)) dx between two valuations each."""
    if market.valuations.atoms:  # F is constant between them
        points = market.valuations.values[::2]
        inside = np.clip(points, start[..., None], end[..., None])
        held = _winning(market, taste, market.valuations.cdf(points[:-1]))
        exact: Array = (np.diff(inside, axis=-1) * held).sum(axis=-1)
        return exact
    share, weights = _nodes()
    x = start[..., None] + (end - start)[..., None] * share
    area: Array = (_winning(market, taste, market.valuations.cdf(x)) * weights).sum(axis=-1) * (end - start)
    return area


def _nodes() -> tuple[Array, Array]:
    """Places in (0, 1) and weights of a composite Gauss–Legendre rule."""
    even = np.linspace(0.0, 1.0, CELLS + 1)
    edges = even**3 / (even**3 + (1 - even) ** 3)
    x, weights = np.polynomial.legendre.leggauss(NODES)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), (half * weights).ravel()


# Tables of several tastes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableEquilibrium:
    """One curve for each taste, and how much of an equilibrium they are."""

    curves: tuple[Curve, ...]
    counts: tuple[int, ...]  # bidders of each taste
    residual: float  # the most that any bidder could gain by another bid, over all valuations and tastes

    @property
    def seats(self) -> list[Curve]:
        """One curve for each bidder."""
        return [curve for curve, count in zip(self.curves, self.counts, strict=True) for _ in range(count)]

    def chance(self, taste: int) -> WinChance:
        """How likely a bidder of the given taste wins with a bid."""
        own = sum(self.counts[:taste])
        return against([curve for seat, curve in enumerate(self.seats) if seat != own])


def mixed(market: Market, tastes: Sequence[Prospect], counts: Sequence[int], points: int = 1001) -> TableEquilibrium:
    """The first-price equilibrium of a table where `counts[i]` bidders have `tastes[i]`, such as CPT and neutral.

    Let y_i(b) = −log F(v_i(b)) for the valuation v_i at which taste i bids b, and p_i the chance to win. What is best
    for everybody at once is a system of differential equations in b,

        −y_i′ = S − R_i,   R_i = 1 / (ε_i(p_i) (v_i − b)),   S = Σ_j n_j R_j / (Σ_j n_j − 1),   ε = p w′(p) / (α w(p)),

    solved downwards from the highest bid, where all y are 0. A taste whose right side is negative there bids nothing
    so high and joins further down. The highest bid is found by halving: from one that is too high some valuation is
    met by its bid before the lowest bid is reached (Marshall et al. 1994, with tastes for risk).
    """
    if market.rule != "first_price":
        raise ValueError(f"tables of several tastes are solved for first_price, not {market.rule}")
    if sum(counts) != market.bidders or min(counts) < 1 or len(counts) != len(tastes):
        raise ValueError(f"counts must be one per taste and sum to {market.bidders} bidders, got {list(counts)}")
    if market.valuations.atoms:
        raise ValueError("tables of several tastes need valuations without points of their own probability")
    if any(taste.reference != 0 for taste in tastes):
        raise ValueError("tables of several tastes are solved for reference 0")
    slopes = _Slopes(market, tastes, counts)
    low, high = slopes.lowest, market.valuations.high
    for _ in range(HALVINGS):
        top = (low + high) / 2
        low, high = (low, top) if slopes.adam_step(top)[2] else (top, high)
    bids, y, _ = slopes.adam_step(low, points)
    at = ranks(market.valuations, points, entry_rank(market))
    values = market.valuations.quantile(at)
    curves = tuple(Curve(at, values, _on_ranks(at, values, bids, own, slopes.lowest)) for own in y)
    table = TableEquilibrium(curves, tuple(counts), 0.0)
    left = [regret(market, taste, curves[i], table.chance(i)) for i, taste in enumerate(tastes)]
    return replace(table, residual=max(left))


class _Slopes:
    """The right side of the differential equations, in plain floats, which are faster for so few."""

    def __init__(self, market: Market, tastes: Sequence[Prospect], counts: Sequence[int]) -> None:
        self.valuations = market.valuations
        self.lowest = max(market.reserve, market.valuations.low)
        self.tastes = [(taste.alpha, taste.gamma_gains, count) for taste, count in zip(tastes, counts, strict=True)]

    def value(self, y: float) -> float:
        """The valuation of a rank."""
        return float(np.interp(math.exp(-y), self.valuations.levels, self.valuations.values))

    def __call__(self, bid: float, y: Array) -> list[float]:
        """dy/db."""
        all_y = [max(float(own), START) for own in y]
        total = sum(count * own for own, (_, _, count) in zip(all_y, self.tastes, strict=True))
        rates = []
        for own, (alpha, gamma, _) in zip(all_y, self.tastes, strict=True):
            margin = max(self.value(own) - bid, 1e-12)
            rates.append(1.0 / (_elasticity(total - own, gamma) / alpha * margin))
        active = set(range(len(rates)))
        while True:
            bidders = sum(self.tastes[i][2] for i in active)
            pull = sum(self.tastes[i][2] * rates[i] for i in active) / max(bidders - 1, 1e-12)
            waiting = {i for i in active if pull < rates[i] and all_y[i] <= 2 * START}
            if not waiting or waiting == active:
                return [rates[i] - pull if i in active else 0.0 for i in range(len(rates))]
            active -= waiting

    def adam_step(self, top: float, points: int = 0) -> tuple[Array, Array, bool]:
        """Bids [B] falling from `top`, y [tastes, B], and whether a valuation was met by its bid on the way.

        Without `points` the bids are those at which the solver happens to stop.
        """

        def met(bid: float, y: Array) -> float:
            return min(self.value(float(own)) for own in y) - bid - 1e-6 * (top - self.lowest)

        met.terminal = True  # type: ignore[attr-defined]  # how SciPy wants to be told
        span, start = (top, self.lowest + 1e-9), np.full(len(self.tastes), START)
        if top <= span[1]:
            return np.array([top]), start[:, None], False
        even = np.linspace(0.0, 1.0, points)
        bids = np.clip(top - (top - span[1]) * even**2 * (3 - 2 * even), span[1], top) if points else None
        path = solve_ivp(self, span, start, rtol=1e-8, atol=1e-13, events=met, t_eval=bids)
        return path.t, path.y, path.status == 1


def _elasticity(y: float, gamma: float) -> float:
    """p w′(p) / w(p) at p = e^{−y}."""
    if gamma == 1.0:
        return 1.0
    p, miss = math.exp(-y), max(-math.expm1(-y), 1e-300)
    up, down = p**gamma, miss**gamma
    return gamma - (up - p * miss ** (gamma - 1.0)) / (up + down)


def _on_ranks(at: Array, values: Array, bids: Array, y: Array, lowest: float) -> Array:
    """A path from the highest bid down, read at ranks; its last and least certain stretch is replaced by a line."""
    joins = int(np.flatnonzero(y <= 2 * START).max())  # what lies above is not bid by this taste
    bids, own = bids[joins:], np.exp(-y[joins:])
    if not (np.diff(own) <= 0).all():
        raise CoterieError("no equilibrium without gaps was found for this table")
    first = np.interp(lowest, values, at)
    found = np.interp(at, np.append(own, first)[::-1], np.append(bids, lowest)[::-1])
    return np.where(values < lowest, 0.0, np.minimum(found, values))


def regret(market: Market, taste: Prospect, curve: Curve, chance: WinChance) -> float:
    """The most that a bidder with this curve could gain by another bid, at any one valuation."""
    own = interim(market, taste, curve.values, curve.bids, chance)
    return float((best_response(market, taste, curve.values, chance).worth - own).max())


def uniform() -> Valuations:
    """Every valuation in [0, 1] equally likely: what the textbooks solve."""
    return Valuations(np.array([0.0, 1.0]), np.array([0.0, 1.0]), False)
