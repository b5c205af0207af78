"""What a bid is worth: bid curves, chances to win, interim values, best responses, and how far from ideal one is.

Everything is interim: judged by a bidder who knows its own valuation and not the others', whose valuations are
independent and of one distribution. Equilibria are in `equilibria.py`; the auction to be played is a world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coterie.core.types import Array
from coterie.core.validation import at_least, whole, within
from coterie.preferences.prospect import Prospect, lottery, value
from coterie.worlds.auction.valuations import Valuations, straight

Rule = Literal["first_price", "second_price", "all_pay"]
WinChance = Callable[[Array], Array]  # bids of any shape → chances to win the item with them, before any reserve
CANDIDATES, ZOOMS, ZOOM = 801, 3, 17  # of a best response: bids tried, times looked closer, bids of a closer look
PRICES = 513  # points of second prices between 0 and 1


@dataclass(frozen=True)
class Market:
    """An auction as theory sees it. A bid below the reserve is none: it neither wins nor pays."""

    bidders: int
    valuations: Valuations
    rule: Rule = "first_price"
    reserve: float = 0.0

    def __post_init__(self) -> None:
        whole("bidders", self.bidders)
        at_least("bidders", self.bidders, 2)
        within("reserve", self.reserve, 0, 1)


@dataclass(frozen=True)
class Curve:
    """What is bid at each rank among all valuations; a bid of 0 under a reserve is none."""

    ranks: Array  # [K] from 0 to 1, rising
    values: Array  # [K] the valuations of these ranks
    bids: Array  # [K]

    def __call__(self, values: Array | float) -> Array:
        """The bids at other valuations, straight in between."""
        bids: Array = np.interp(values, self.values, self.bids)
        return bids

    def cdf(self, bids: Array, side: Literal["left", "right"] = "right") -> Array:
        """How likely one such bidder bids at most this, or from the left: less than this."""
        if (np.diff(self.bids) >= 0).all():
            return straight(bids, self.bids, self.ranks, side)
        order = np.argsort(self.bids, kind="stable")
        share = np.gradient(self.ranks)[order]
        upto = np.cumsum(share) - share / 2
        return straight(bids, self.bids[order], (upto - upto[0]) / (upto[-1] - upto[0]), side)


def ranks(valuations: Valuations, points: int = 1001, entry: float = 0.0) -> Array:
    """Ranks at which to look at a curve: closer to each other near both ends; jumps have both their sides.

    `entry` is the lowest rank that bids at all.
    """
    even = np.linspace(0.0, 1.0, points)
    jumps = np.append(valuations.levels[1:-1] + 1e-12, valuations.levels) if valuations.atoms else np.empty(0)
    return np.union1d(even**2 * (3 - 2 * even), [max(entry - 1e-12, 0.0), entry, *jumps])


def curve(market: Market, bid: Callable[[Array], Array], points: int = 1001) -> Curve:
    """Any bidder, a learned one say, as a curve: `bid` maps valuations `[K]` to bids `[K]`."""
    at = ranks(market.valuations, points, float(market.valuations.below(market.reserve)))
    values = market.valuations.quantile(at)
    return Curve(at, values, np.asarray(bid(values), float))


# Chances to win -----------------------------------------------------------------------------------------


def against(rivals: Sequence[Curve]) -> WinChance:
    """Against independent rivals who follow these curves; ties are broken by lot."""

    def chance(bids: Array) -> Array:
        return _tied([(rival.cdf(bids, "left"), rival.cdf(bids)) for rival in rivals])

    return chance


def _tied(chances: Sequence[tuple[Array, Array]]) -> Array:
    """To win against rivals, each of whom bids less, or at most as much, with the given chances.

    A lot among equals is the same as giving everybody a number in [0, 1] and comparing those: an integral over one's
    own, of a polynomial whose degree is the number of rivals.
    """
    upto: Array = np.prod([most for _, most in chances], axis=0)
    if all(np.array_equal(less, most) for less, most in chances):
        return upto
    x, weights = np.polynomial.legendre.leggauss(len(chances) // 2 + 1)
    return sum(w / 2 * np.prod([a + (t + 1) / 2 * (b - a) for a, b in chances], axis=0) for t, w in zip(x, weights))


def against_samples(rival_bids: Array) -> WinChance:
    """Against rivals of whom M tables of bids `[M, R]` were seen; ties are broken by lot."""
    rival_bids = np.asarray(rival_bids, float)
    if rival_bids.ndim != 2 or not rival_bids.size:
        raise ValueError(f"rival bids must have shape [M, R] with at least one row, got {rival_bids.shape}")
    highest = rival_bids.max(axis=1)
    share = 1.0 / (1 + (rival_bids == highest[:, None]).sum(axis=1))  # of a tie at the top
    order = np.argsort(highest)
    highest, lots = highest[order], np.concatenate([[0.0], np.cumsum(share[order])])

    def chance(bids: Array) -> Array:
        less, upto = (np.searchsorted(highest, bids, side=side) for side in ("left", "right"))
        won: Array = (less + lots[upto] - lots[less]) / len(highest)
        return won

    return chance


# The worth of a bid -------------------------------------------------------------------------------------


def interim(market: Market, taste: Prospect, values: Array, bids: Array, chance: WinChance) -> Array:
    """What `bids` are worth at `values`, both of one shape once broadcast, to somebody of this taste."""
    values, bids = np.broadcast_arrays(np.asarray(values, float), np.asarray(bids, float))
    if market.rule == "second_price":
        return _interim_second_price(market, taste, values, bids, chance)
    stands = bids >= market.reserve
    won = np.where(stands, chance(bids), 0.0)
    lost = np.where(stands, -bids, 0.0) if market.rule == "all_pay" else np.zeros_like(bids)
    gain = values - bids
    # With a bid above one's valuation, winning is the worse outcome.
    up, down = np.maximum(gain, lost), np.minimum(gain, lost)
    return np.where(
        stands, lottery(taste, up, down, np.where(gain >= lost, won, 1.0 - won)), lottery(taste, 0.0, 0.0, 1.0)
    )


def _interim_second_price(market: Market, taste: Prospect, values: Array, bids: Array, chance: WinChance) -> Array:
    """The price is random, too: in `PRICES` steps, each paid in its middle."""
    edges = np.linspace(market.reserve, 1.0, PRICES)
    prices = np.concatenate([[market.reserve], (edges[1:] + edges[:-1]) / 2])
    upto = np.minimum(edges, bids[..., None])
    won = np.where(bids[..., None] >= market.reserve, chance(upto), 0.0)
    steps = np.diff(won, axis=-1, prepend=0.0)
    outcomes = np.concatenate([values[..., None] - prices, np.zeros((*values.shape, 1))], axis=-1)
    return value(taste.risk_parameters(), outcomes, np.concatenate([steps, 1.0 - won[..., -1:]], axis=-1))


class Response(NamedTuple):
    """The best that a bidder can do at each valuation."""

    bids: Array  # [V]
    worth: Array  # [V] interim values of these bids


def best_response(market: Market, taste: Prospect, values: Array, chance: WinChance, bid_levels: int = 0) -> Response:
    """The best bid at every valuation `[V]`, anything in [0, 1] or on a grid of `bid_levels` bids.

    At second prices that is the valuation itself, whatever the taste, unless bids lie on a grid.
    """
    values = np.asarray(values, float)
    if market.rule == "second_price" and not bid_levels:
        return Response(values, interim(market, taste, values, values, chance))
    floor = 0.0 if bid_levels else market.reserve
    tried = np.linspace(floor, 1.0, bid_levels or CANDIDATES)
    worth = interim(market, taste, values[:, None], tried[None, :], chance)
    best = worth.argmax(axis=1)
    found = Response(tried[best], np.take_along_axis(worth, best[:, None], 1)[:, 0])
    if bid_levels:
        return found
    step = tried[1] - tried[0]
    for _ in range(ZOOMS):
        near = found.bids[:, None] + step * np.linspace(-1, 1, ZOOM)
        found, step = _better(market, taste, values, np.clip(near, floor, 1.0), chance), step * 2 / (ZOOM - 1)
    if market.reserve > 0:  # staying away may be best
        away = float(lottery(taste, 0.0, 0.0, 1.0))
        stay = found.worth <= away
        found = Response(np.where(stay, 0.0, found.bids), np.maximum(found.worth, away))
    return found


def _better(market: Market, taste: Prospect, values: Array, tried: Array, chance: WinChance) -> Response:
    worth = interim(market, taste, values[:, None], tried, chance)
    best = worth.argmax(axis=1)[:, None]
    return Response(*(np.take_along_axis(array, best, 1)[:, 0] for array in (tried, worth)))


# How far from ideal -------------------------------------------------------------------------------------


def distance(bids: Array, ideal: Array, weights: Array | None = None) -> float:
    """The L2 distance of bids `[M]` to ideal ones at the same valuations, drawn as bidders draw them.

    Without weights this is bnelearn's: the root of the mean squared difference. Weights, chances to win say, let
    bids count by what hangs on them: those of bidders who never win cost nothing.
    """
    square = (np.asarray(bids, float) - np.asarray(ideal, float)) ** 2
    return float(np.sqrt(np.average(square, weights=weights)))


class Loss(NamedTuple):
    """What a bidder gives away, on average over its valuations."""

    worth: float  # of its bids
    ideal: float  # of the bids that it is compared with
    absolute: float  # ideal − worth
    relative: float  # 1 − worth / ideal


def utility_loss(market: Market, taste: Prospect, bidder: Curve, chance: WinChance, ideal: Curve | None = None) -> Loss:
    """What a curve loses against given rivals, compared with `ideal` (in equilibrium bnelearn's utility loss).

    Without an ideal it is compared with the best response: how far it is from being one.
    """
    middle = (np.arange(512) + 0.5) / 512
    values, own = np.interp(middle, bidder.ranks, bidder.values), np.interp(middle, bidder.ranks, bidder.bids)
    worth = float(interim(market, taste, values, own, chance).mean())
    if ideal is None:
        best = float(best_response(market, taste, values, chance).worth.mean())
    else:
        bids = np.interp(middle, ideal.ranks, ideal.bids)
        best = float(interim(market, taste, values, bids, chance).mean())
    return Loss(worth, best, best - worth, 1.0 - worth / best if best else 0.0)


class Result(NamedTuple):
    """What an auction yields on average."""

    revenue: float  # all that is paid
    efficiency: float  # the winner's valuation as a share of the highest one's, both on average
    highest_wins: float  # how often the item goes to the highest rank among the valuations


def result(market: Market, bidders: Sequence[Curve]) -> Result:
    """Revenue and efficiency when these bidders, one curve each and none falling, meet."""
    if len(bidders) != market.bidders:
        raise ValueError(f"the market has {market.bidders} bidders, got {len(bidders)} curves")
    at = (np.arange(8000) + 0.5) / 8000  # ranks, each as likely
    highest = float((market.bidders * market.valuations.quantile(at) * at ** (market.bidders - 1)).mean())
    surplus = right = 0.0
    for i, own in enumerate(bidders):
        bids, values = np.interp(at, own.ranks, own.bids), market.valuations.quantile(at)
        rivals = [(rival.cdf(bids, "left"), rival.cdf(bids)) for j, rival in enumerate(bidders) if j != i]
        stands = bids >= market.reserve
        surplus += float((values * _tied(rivals) * stands).mean())
        lower = [(np.minimum(less, at), np.minimum(most, at)) for less, most in rivals]
        right += float((_tied(lower) * stands).mean())
    return Result(_revenue(market, bidders, at), surplus / highest, right)


def _revenue(market: Market, bidders: Sequence[Curve], at: Array) -> float:
    if market.rule == "all_pay":
        bids = [np.interp(at, own.ranks, own.bids) for own in bidders]
        return float(sum((b * (b >= market.reserve)).mean() for b in bids))
    prices = np.linspace(market.reserve, 1.0, 8001)
    upto = np.array([own.cdf(prices) for own in bidders])
    highest = upto.prod(axis=0)
    below = highest
    if market.rule == "second_price":  # all but one at most this
        below = highest + sum((1 - own) * np.delete(upto, i, 0).prod(axis=0) for i, own in enumerate(upto))
    sold = 1.0 - np.prod([own.cdf(np.array(market.reserve), "left") for own in bidders])
    return float(market.reserve * sold + np.trapezoid(1.0 - below, prices))
