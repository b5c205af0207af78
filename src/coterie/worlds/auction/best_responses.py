"""Bid functions, win probabilities, interim utilities, best responses, utility losses and auction outcomes.

Utilities are interim: expected by a bidder that knows its own valuation and not the others', whose valuations are
independent draws from one distribution. Equilibria are in `equilibria.py`, the environment is in `world.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coterie.core.types import Array
from coterie.core.validation import at_least, whole, within
from coterie.preferences.prospect import Prospect, lottery, value
from coterie.worlds.auction.valuations import Valuations, interpolate

Rule = Literal["first_price", "second_price", "all_pay"]
WinProbability = Callable[[Array], Array]  # bids of any shape → win probabilities, ignoring the reserve
CANDIDATES, ZOOMS, ZOOM = 801, 3, 17  # of a best response: bids tried, refinements, bids per refinement
PRICES = 513  # grid points of the second price between the reserve and 1


@dataclass(frozen=True)
class AuctionModel:
    """A sealed-bid auction with independent private valuations. A bid below the reserve neither wins nor pays."""

    bidders: int
    valuations: Valuations
    rule: Rule = "first_price"
    reserve: float = 0.0

    def __post_init__(self) -> None:
        whole("bidders", self.bidders)
        at_least("bidders", self.bidders, 2)
        within("reserve", self.reserve, 0, 1)


@dataclass(frozen=True)
class BidFunction:
    """Bids as a function of the valuation, tabulated at ranks (quantiles of the valuation distribution)."""

    ranks: Array  # [K] from 0 to 1, rising
    values: Array  # [K] the valuations of these ranks
    bids: Array  # [K]; with a reserve, a bid of 0 means not to bid

    def __call__(self, values: Array | float) -> Array:
        """The bids at other valuations, interpolated linearly."""
        bids: Array = np.interp(values, self.values, self.bids)
        return bids

    def cdf(self, bids: Array, side: Literal["left", "right"] = "right") -> Array:
        """The probability that such a bidder bids at most `bids`, or, from the left, less than `bids`."""
        if (np.diff(self.bids) >= 0).all():
            return interpolate(bids, self.bids, self.ranks, side)
        order = np.argsort(self.bids, kind="stable")
        share = np.gradient(self.ranks)[order]
        upto = np.cumsum(share) - share / 2
        return interpolate(bids, self.bids[order], (upto - upto[0]) / (upto[-1] - upto[0]), side)


def rank_grid(valuations: Valuations, points: int = 1001, entry: float = 0.0) -> Array:
    """Ranks at which to tabulate a bid function: denser near both ends, with both sides of every jump.

    `entry` is the lowest rank that bids.
    """
    even = np.linspace(0.0, 1.0, points)
    jumps = np.append(valuations.levels[1:-1] + 1e-12, valuations.levels) if valuations.atoms else np.empty(0)
    return np.union1d(even**2 * (3 - 2 * even), [max(entry - 1e-12, 0.0), entry, *jumps])


def bid_function(model: AuctionModel, bid: Callable[[Array], Array], points: int = 1001) -> BidFunction:
    """Tabulate any bidder, for instance a learned one: `bid` maps valuations `[K]` to bids `[K]`."""
    at = rank_grid(model.valuations, points, float(model.valuations.below(model.reserve)))
    values = model.valuations.quantile(at)
    return BidFunction(at, values, np.asarray(bid(values), float))


# Win probabilities ------------------------------------------------------------------------------------


def win_probability_against(rivals: Sequence[BidFunction]) -> WinProbability:
    """The win probability against independent rivals with these bid functions; ties are broken at random."""

    def win_probability(bids: Array) -> Array:
        return _win_with_ties([(rival.cdf(bids, "left"), rival.cdf(bids)) for rival in rivals])

    return win_probability


def _win_with_ties(probabilities: Sequence[tuple[Array, Array]]) -> Array:
    """The win probability, given each rival's probabilities to bid less and to bid at most as much.

    Breaking ties at random equals comparing uniform numbers in [0, 1]: an integral over the bidder's own number of a
    polynomial whose degree is the number of rivals, exact by Gauss–Legendre quadrature.
    """
    upto: Array = np.prod([most for _, most in probabilities], axis=0)
    if all(np.array_equal(less, most) for less, most in probabilities):
        return upto
    x, weights = np.polynomial.legendre.leggauss(len(probabilities) // 2 + 1)
    return sum(
        w / 2 * np.prod([a + (t + 1) / 2 * (b - a) for a, b in probabilities], axis=0) for t, w in zip(x, weights)
    )


# Interim utility and best responses -------------------------------------------------------------------


def interim_utility(
    model: AuctionModel, risk: Prospect, values: Array, bids: Array, win_probability: WinProbability
) -> Array:
    """The interim utility of `bids` at valuations `values`, broadcast together, for a risk preference."""
    values, bids = np.broadcast_arrays(np.asarray(values, float), np.asarray(bids, float))
    if model.rule == "second_price":
        return _interim_utility_second_price(model, risk, values, bids, win_probability)
    valid = bids >= model.reserve
    won = np.where(valid, win_probability(bids), 0.0)
    lost = np.where(valid, -bids, 0.0) if model.rule == "all_pay" else np.zeros_like(bids)
    gain = values - bids
    # With a bid above the valuation, winning is the worse outcome.
    up, down = np.maximum(gain, lost), np.minimum(gain, lost)
    return np.where(
        valid, lottery(risk, up, down, np.where(gain >= lost, won, 1.0 - won)), lottery(risk, 0.0, 0.0, 1.0)
    )


def _interim_utility_second_price(
    model: AuctionModel, risk: Prospect, values: Array, bids: Array, win_probability: WinProbability
) -> Array:
    """Discretise the random price into `PRICES` steps, each paid at its midpoint."""
    edges = np.linspace(model.reserve, 1.0, PRICES)
    prices = np.concatenate([[model.reserve], (edges[1:] + edges[:-1]) / 2])
    upto = np.minimum(edges, bids[..., None])
    won = np.where(bids[..., None] >= model.reserve, win_probability(upto), 0.0)
    steps = np.diff(won, axis=-1, prepend=0.0)
    outcomes = np.concatenate([values[..., None] - prices, np.zeros((*values.shape, 1))], axis=-1)
    return value(risk.risk_parameters(), outcomes, np.concatenate([steps, 1.0 - won[..., -1:]], axis=-1))


class BestResponse(NamedTuple):
    """The best bid at each valuation."""

    bids: Array  # [V]
    utility: Array  # [V] interim utilities of these bids


def grid_bids(chosen: Array, bid_levels: int) -> Array:
    """The bids of discrete actions, to the last bit those of the world: otherwise equal bids would not tie."""
    bids: Array = chosen / (bid_levels - 1)
    return bids


def best_response(
    model: AuctionModel, risk: Prospect, values: Array, win_probability: WinProbability, bid_levels: int = 0
) -> BestResponse:
    """The best bid at every valuation `[V]`, any number in [0, 1] or one of `bid_levels` bids.

    In second-price auctions it is the valuation for every risk preference, unless bids lie on a grid.
    """
    values = np.asarray(values, float)
    if model.rule == "second_price" and not bid_levels:
        return BestResponse(values, interim_utility(model, risk, values, values, win_probability))
    floor = 0.0 if bid_levels else model.reserve
    tried = grid_bids(np.arange(bid_levels), bid_levels) if bid_levels else np.linspace(floor, 1.0, CANDIDATES)
    utility = interim_utility(model, risk, values[:, None], tried[None, :], win_probability)
    best = utility.argmax(axis=1)
    found = BestResponse(tried[best], np.take_along_axis(utility, best[:, None], 1)[:, 0])
    if bid_levels:
        return found
    step = tried[1] - tried[0]
    for _ in range(ZOOMS):
        near = found.bids[:, None] + step * np.linspace(-1, 1, ZOOM)
        found, step = _best_of(model, risk, values, np.clip(near, floor, 1.0), win_probability), step * 2 / (ZOOM - 1)
    if model.reserve > 0:  # not bidding may be best
        no_bid = float(lottery(risk, 0.0, 0.0, 1.0))
        abstain = found.utility <= no_bid
        found = BestResponse(np.where(abstain, 0.0, found.bids), np.maximum(found.utility, no_bid))
    return found


def _best_of(
    model: AuctionModel, risk: Prospect, values: Array, tried: Array, win_probability: WinProbability
) -> BestResponse:
    utility = interim_utility(model, risk, values[:, None], tried, win_probability)
    best = utility.argmax(axis=1)[:, None]
    return BestResponse(*(np.take_along_axis(array, best, 1)[:, 0] for array in (tried, utility)))


# Distance, utility loss, outcome ----------------------------------------------------------------------


def l2_distance(bids: Array, reference: Array, weights: Array | None = None) -> float:
    """The L2 distance of bids `[M]` to reference bids at the same valuations, drawn from their distribution.

    Without weights this is bnelearn's metric: the root of the mean squared difference. With win probabilities as
    weights, bids that hardly ever win count little.
    """
    square = (np.asarray(bids, float) - np.asarray(reference, float)) ** 2
    return float(np.sqrt(np.average(square, weights=weights)))


class UtilityLoss(NamedTuple):
    """The loss of a bidder, on average over its valuations."""

    utility: float  # of its bids
    reference: float  # utility of the reference bids
    absolute: float  # reference − utility
    relative: float  # 1 − utility / reference


def utility_loss(
    model: AuctionModel,
    risk: Prospect,
    bidder: BidFunction,
    win_probability: WinProbability,
    reference: BidFunction | None = None,
) -> UtilityLoss:
    """The utility that a bid function loses against given rivals, compared with the `reference` bid function.

    With the equilibrium as reference and as rivals this is bnelearn's utility loss. Without a reference the bid
    function is compared with the best response.
    """
    middle = (np.arange(512) + 0.5) / 512
    values, own = np.interp(middle, bidder.ranks, bidder.values), np.interp(middle, bidder.ranks, bidder.bids)
    utility = float(interim_utility(model, risk, values, own, win_probability).mean())
    if reference is None:
        best = float(best_response(model, risk, values, win_probability).utility.mean())
    else:
        bids = np.interp(middle, reference.ranks, reference.bids)
        best = float(interim_utility(model, risk, values, bids, win_probability).mean())
    return UtilityLoss(utility, best, best - utility, 1.0 - utility / best if best else 0.0)


class AuctionOutcome(NamedTuple):
    """The expected outcome of an auction."""

    revenue: float  # the sum of all payments
    efficiency: float  # mean valuation of the winner / mean highest valuation
    highest_wins: float  # probability that the bidder with the highest rank wins


def expected_outcome(model: AuctionModel, bidders: Sequence[BidFunction]) -> AuctionOutcome:
    """Revenue and efficiency of bidders with these non-decreasing bid functions."""
    if len(bidders) != model.bidders:
        raise ValueError(f"bidders: expected {model.bidders} bid functions, one per bidder, got {len(bidders)}")
    at = (np.arange(8000) + 0.5) / 8000  # equally likely ranks
    highest = float((model.bidders * model.valuations.quantile(at) * at ** (model.bidders - 1)).mean())
    surplus = right = 0.0
    for i, own in enumerate(bidders):
        bids, values = np.interp(at, own.ranks, own.bids), model.valuations.quantile(at)
        rivals = [(rival.cdf(bids, "left"), rival.cdf(bids)) for j, rival in enumerate(bidders) if j != i]
        valid = bids >= model.reserve
        surplus += float((values * _win_with_ties(rivals) * valid).mean())
        lower = [(np.minimum(less, at), np.minimum(most, at)) for less, most in rivals]
        right += float((_win_with_ties(lower) * valid).mean())
    return AuctionOutcome(_revenue(model, bidders, at), surplus / highest, right)


def _revenue(model: AuctionModel, bidders: Sequence[BidFunction], at: Array) -> float:
    if model.rule == "all_pay":
        bids = [np.interp(at, own.ranks, own.bids) for own in bidders]
        return float(sum((b * (b >= model.reserve)).mean() for b in bids))
    prices = np.linspace(model.reserve, 1.0, 8001)
    upto = np.array([own.cdf(prices) for own in bidders])
    highest = upto.prod(axis=0)
    below = highest
    if model.rule == "second_price":  # the second highest bid is at most this
        below = highest + sum((1 - own) * np.delete(upto, i, 0).prod(axis=0) for i, own in enumerate(upto))
    sold = 1.0 - np.prod([own.cdf(np.array(model.reserve), "left") for own in bidders])
    return float(model.reserve * sold + np.trapezoid(1.0 - below, prices))
