"""Compiled kernels of the auction: bids, winners and payments, observations, valuations."""

from __future__ import annotations

from typing import NamedTuple

from coterie.core.jit import device_function
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn.launch import kernel

FIRST_PRICE, SECOND_PRICE, ALL_PAY = 0, 1, 2
NO_WINNER = -1


class AuctionState(NamedTuple):
    """The full state of N copies, random state included; what `save` stores."""

    random: Array  # [N] uint64: state of each copy's generator
    round: Array  # [N] int32: rounds played in this episode
    valuation: Array  # [N, A] float64: of the item on sale now
    left: Array  # [N, A] float64: budget left in this episode
    winner: Array  # [N] int32: winner of this episode's latest round, or −1
    price: Array  # [N] float64: price of that round, or 0
    efficient: Array  # [N] bool: every item of this episode went to the highest valuation


class Round(NamedTuple):
    """The latest round of N copies, for infos and rendering; not part of the state."""

    held: Array  # [N] bool: a round has been played
    round: Array  # [N] int32: its number, from 1
    valuation: Array  # [N, A] float64
    bid: Array  # [N, A] float64: after the budget limit
    paid: Array  # [N, A] float64
    winner: Array  # [N] int32
    price: Array  # [N] float64


class Rules(NamedTuple):
    """The settings as the kernels read them."""

    rule: int
    reserve: float
    rounds: int
    budget: float  # inf for no budget
    has_budget: bool  # the budget is part of observations
    points: bool  # the distribution of valuations is discrete
    levels: Array  # [K] float64: the table of valuations, see `valuations.py`
    values: Array  # [K] float64


class StepOutput(NamedTuple):
    """The arrays that a step writes."""

    observation: Array  # [N, A, D] float32
    final_observation: Array  # [N, A, D] float32, written where the copy ended
    state: Array  # [N, Z] float32
    final_state: Array  # [N, Z] float32, written where the copy ended
    reward: Array  # [N, A] float32
    terminated: Array  # [N, A] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


# Bids -------------------------------------------------------------------------------------------------


@kernel
def bids_from_continuous(n: int, given: Array, left: Array, bid: Array) -> None:
    """Write float32 bids `[N, A, 1]` into `bid` [N, A], limited to the budget that is left."""
    for a in range(bid.shape[1]):
        bid[n, a] = min(float(given[n, a, 0]), left[n, a])


@kernel
def bids_from_discrete(n: int, given: Array, levels: int, left: Array, bid: Array) -> None:
    """Do the same from discrete actions `[N, A]`: action k bids k / (levels − 1)."""
    for a in range(bid.shape[1]):
        bid[n, a] = min(given[n, a] / (levels - 1), left[n, a])


@device_function
def _break_tie(random: Array, bids: Array, n: int, best: float, ties: int) -> int:
    """A uniformly random bidder among those that bid `best`."""
    skip = int(uniform(random, n) * ties) if ties > 1 else 0
    for a in range(bids.shape[1]):
        if bids[n, a] == best:
            if skip == 0:
                return a
            skip -= 1
    return NO_WINNER


@device_function
def _find_winner(auction: AuctionState, rules: Rules, bid: Array, n: int) -> None:
    """Write winner and price among the bids that reach the reserve; ties are broken at random."""
    best, second, ties = -1.0, -1.0, 0
    for a in range(bid.shape[1]):
        b = bid[n, a]
        if b < rules.reserve:
            continue
        if b > best:
            best, second, ties = b, best, 1
        elif b == best:
            second, ties = b, ties + 1
        elif b > second:
            second = b
    auction.winner[n] = _break_tie(auction.random, bid, n, best, ties) if ties > 0 else NO_WINNER
    auction.price[n] = 0.0
    if ties > 0:
        auction.price[n] = max(second, rules.reserve) if rules.rule == SECOND_PRICE else best


@device_function
def _pay(auction: AuctionState, rules: Rules, bid: Array, latest: Round, reward: Array, n: int) -> None:
    """Write payments and rewards, and record the round."""
    winner, price, highest = auction.winner[n], auction.price[n], 0.0
    for a in range(bid.shape[1]):
        paid = price if a == winner else 0.0
        if rules.rule == ALL_PAY and bid[n, a] >= rules.reserve:
            paid = bid[n, a]
        value = auction.valuation[n, a]
        reward[n, a] = (value if a == winner else 0.0) - paid
        auction.left[n, a] -= paid
        latest.valuation[n, a], latest.bid[n, a], latest.paid[n, a] = value, bid[n, a], paid
        highest = max(highest, value)
    best_wins = winner != NO_WINNER and auction.valuation[n, winner] == highest
    auction.efficient[n] = auction.efficient[n] and best_wins
    auction.round[n] += 1
    latest.held[n] = True
    latest.round[n], latest.winner[n], latest.price[n] = auction.round[n], winner, price


# Observations -----------------------------------------------------------------------------------------


@kernel
def observe(n: int, auction: AuctionState, rules: Rules, seen: Array, state: Array) -> None:
    """Write the observations of all bidders into `seen` [N, A, D] and the global state into `state` [N, Z].

    A bidder observes its valuation; in repeated auctions also the fraction of rounds played, whether the last item was
    sold, its price, whether the bidder won it, and the fraction of its budget left. The state holds these for all.
    """
    bidders = auction.valuation.shape[1]
    for a in range(bidders):
        seen[n, a, 0] = state[n, a] = auction.valuation[n, a]
    if rules.rounds == 1:
        return
    winner, price = auction.winner[n], auction.price[n]
    played, sold = auction.round[n] / rules.rounds, winner != NO_WINNER
    state[n, bidders], state[n, bidders + 1], state[n, bidders + 2] = played, sold, price
    for a in range(bidders):
        won = winner == a
        seen[n, a, 1], seen[n, a, 2], seen[n, a, 3], seen[n, a, 4] = played, sold, price, won
        state[n, bidders + 3 + a] = won
        if rules.has_budget:
            share = auction.left[n, a] / rules.budget
            seen[n, a, 5] = share
            state[n, 2 * bidders + 3 + a] = share


# Episodes ---------------------------------------------------------------------------------------------


@device_function
def _piece(levels: Array, level: float) -> int:
    """The piece of the table of valuations that a level lies in: the last one that begins at most there."""
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        if levels[middle] <= level:
            low = middle + 1
        else:
            high = middle
    return low - 1


@device_function
def _draw_valuations(auction: AuctionState, rules: Rules, n: int) -> None:
    """Draw all valuations of a new item, by inverse transform sampling."""
    pieces, values = len(rules.levels) - 1, rules.values
    for a in range(auction.valuation.shape[1]):
        level = uniform(auction.random, n)
        if rules.points:  # pieces of different probability
            auction.valuation[n, a] = values[_piece(rules.levels, level)]
        else:  # equally likely pieces
            k = int(level * pieces)
            auction.valuation[n, a] = values[k] + (level * pieces - k) * (values[k + 1] - values[k])


@device_function
def _reset(auction: AuctionState, rules: Rules, n: int) -> None:
    """Reset everything but the valuations, which every round draws."""
    auction.round[n] = 0
    auction.winner[n] = NO_WINNER
    auction.price[n] = 0.0
    auction.efficient[n] = True
    for a in range(auction.left.shape[1]):
        auction.left[n, a] = rules.budget


@kernel
def start_episode(n: int, auction: AuctionState, rules: Rules) -> None:
    """Start a new episode."""
    _reset(auction, rules, n)
    _draw_valuations(auction, rules, n)


@device_function
def _store_final(latest: Round, final: Round, n: int) -> None:
    """Store the last round of an episode for rendering."""
    final.held[n], final.round[n] = True, latest.round[n]
    final.winner[n], final.price[n] = latest.winner[n], latest.price[n]
    for a in range(latest.bid.shape[1]):
        final.valuation[n, a], final.bid[n, a] = latest.valuation[n, a], latest.bid[n, a]
        final.paid[n, a] = latest.paid[n, a]


@kernel
def step(n: int, auction: AuctionState, rules: Rules, bid: Array, latest: Round, final: Round, out: StepOutput) -> None:
    """Play one round with the bids `[N, A]`, and start the next episode where one ends."""
    _find_winner(auction, rules, bid, n)
    _pay(auction, rules, bid, latest, out.reward, n)
    ended = auction.round[n] >= rules.rounds
    out.ended[n] = ended
    out.success[n] = ended and auction.efficient[n]
    for a in range(bid.shape[1]):
        out.terminated[n, a] = ended
    if ended:
        observe(n, auction, rules, out.final_observation, out.final_state)
        _store_final(latest, final, n)
        _reset(auction, rules, n)
    _draw_valuations(auction, rules, n)
    observe(n, auction, rules, out.observation, out.state)
