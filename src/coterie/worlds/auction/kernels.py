"""Compiled kernels of the auction: bids, winners and payments, observations, valuations.

Every kernel runs over all N copies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.splitmix import uniform
from coterie.core.types import Array

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


@njit(cache=True)
def bids_from_continuous(given: Array, left: Array, bid: Array) -> int:
    """Write float32 bids `[N, A, 1]` into `bid` [N, A], limited to the budget that is left.

    Returns the flat index (copy · A + bidder) of a bid outside [0, 1], or −1.
    """
    num_envs, bidders = bid.shape
    for n in range(num_envs):
        for a in range(bidders):
            if not 0.0 <= given[n, a, 0] <= 1.0:  # also true for NaN
                return n * bidders + a
            bid[n, a] = min(np.float64(given[n, a, 0]), left[n, a])
    return -1


@njit(cache=True)
def bids_from_discrete(given: Array, levels: int, left: Array, bid: Array) -> int:
    """Do the same from discrete actions `[N, A]`: action k bids k / (levels − 1)."""
    num_envs, bidders = bid.shape
    for n in range(num_envs):
        for a in range(bidders):
            if given[n, a] < 0 or given[n, a] >= levels:
                return n * bidders + a
            bid[n, a] = min(given[n, a] / (levels - 1), left[n, a])
    return -1


@njit(cache=True)
def _break_tie(random: Array, bids: Array, n: int, best: float, ties: int) -> int:
    """A uniformly random bidder among those that bid `best`."""
    skip = int(uniform(random, n) * ties) if ties > 1 else 0
    for a in range(bids.shape[1]):
        if bids[n, a] == best:
            if skip == 0:
                return a
            skip -= 1
    return NO_WINNER


@njit(cache=True)
def _find_winners(auction: AuctionState, rules: Rules, bid: Array) -> None:
    """Write winner and price among the bids that reach the reserve; ties are broken at random."""
    random, winner, price, reserve = auction.random, auction.winner, auction.price, rules.reserve
    second_price = rules.rule == SECOND_PRICE
    for n in range(len(winner)):
        best, second, ties = -1.0, -1.0, 0
        for a in range(bid.shape[1]):
            b = bid[n, a]
            if b < reserve:
                continue
            if b > best:
                best, second, ties = b, best, 1
            elif b == best:
                second, ties = b, ties + 1
            elif b > second:
                second = b
        winner[n] = _break_tie(random, bid, n, best, ties) if ties > 0 else NO_WINNER
        price[n] = 0.0
        if ties > 0:
            price[n] = max(second, reserve) if second_price else best


@njit(cache=True)
def _pay(auction: AuctionState, rules: Rules, bid: Array, latest: Round, reward: Array) -> None:
    """Write payments and rewards, and record the round."""
    all_pay, reserve = rules.rule == ALL_PAY, rules.reserve
    valuation, left, efficient, rounds = auction.valuation, auction.left, auction.efficient, auction.round
    winners, price = auction.winner, auction.price
    round_value, round_bid, round_paid = latest.valuation, latest.bid, latest.paid
    for n in range(len(winners)):
        winner, highest = winners[n], 0.0
        for a in range(bid.shape[1]):
            paid = price[n] if a == winner else 0.0
            if all_pay and bid[n, a] >= reserve:
                paid = bid[n, a]
            value = valuation[n, a]
            reward[n, a] = (value if a == winner else 0.0) - paid
            left[n, a] -= paid
            round_value[n, a], round_bid[n, a], round_paid[n, a] = value, bid[n, a], paid
            highest = max(highest, value)
        efficient[n] = efficient[n] and winner != NO_WINNER and valuation[n, winner] == highest
        rounds[n] += 1
    latest.held[:] = True
    latest.round[:] = rounds
    latest.winner[:] = winners
    latest.price[:] = price


# Observations -----------------------------------------------------------------------------------------


@njit(cache=True)
def observe(auction: AuctionState, rules: Rules, seen: Array, state: Array) -> None:
    """Write the observations of all bidders into `seen` [N, A, D] and the global state into `state` [N, Z].

    A bidder observes its valuation; in repeated auctions also the fraction of rounds played, whether the last item was
    sold, its price, whether the bidder won it, and the fraction of its budget left. The state holds these for all.
    """
    valuation = auction.valuation
    num_envs, bidders = valuation.shape
    for n in range(num_envs):
        for a in range(bidders):
            seen[n, a, 0] = valuation[n, a]
            state[n, a] = valuation[n, a]
    if rules.rounds > 1:
        _observe_history(auction, rules, seen, state)


@njit(cache=True)
def _observe_history(auction: AuctionState, rules: Rules, seen: Array, state: Array) -> None:
    winner, price, rounds, left = auction.winner, auction.price, auction.round, auction.left
    num_envs, bidders = left.shape
    for n in range(num_envs):
        played, sold = rounds[n] / rules.rounds, winner[n] != NO_WINNER
        state[n, bidders], state[n, bidders + 1], state[n, bidders + 2] = played, sold, price[n]
        for a in range(bidders):
            won = winner[n] == a
            seen[n, a, 1], seen[n, a, 2], seen[n, a, 3], seen[n, a, 4] = played, sold, price[n], won
            state[n, bidders + 3 + a] = won
            if rules.has_budget:
                share = left[n, a] / rules.budget
                seen[n, a, 5] = share
                state[n, 2 * bidders + 3 + a] = share


# Episodes ---------------------------------------------------------------------------------------------


@njit(cache=True)
def _draw_valuations(auction: AuctionState, rules: Rules) -> None:
    """Draw all valuations of a new item in every copy, by inverse transform sampling."""
    random, valuation, levels, values = auction.random, auction.valuation, rules.levels, rules.values
    pieces = len(levels) - 1
    for n in range(len(valuation)):
        for a in range(valuation.shape[1]):
            level = uniform(random, n)
            if rules.points:  # pieces of different probability
                valuation[n, a] = values[np.searchsorted(levels, level, side="right") - 1]
            else:  # equally likely pieces
                k = int(level * pieces)
                valuation[n, a] = values[k] + (level * pieces - k) * (values[k + 1] - values[k])


@njit(cache=True)
def _start_episode(auction: AuctionState, rules: Rules, n: int) -> None:
    """Start a new episode in copy n; its valuations are drawn by `_draw_valuations`."""
    auction.round[n] = 0
    auction.winner[n] = NO_WINNER
    auction.price[n] = 0.0
    auction.efficient[n] = True
    auction.left[n] = rules.budget


@njit(cache=True)
def start_all(auction: AuctionState, rules: Rules) -> None:
    """Start a new episode in every copy."""
    for n in range(len(auction.round)):
        _start_episode(auction, rules, n)
    _draw_valuations(auction, rules)


@njit(cache=True)
def _store_final(latest: Round, final: Round, n: int) -> None:
    """Store the last round of an episode for rendering."""
    final.held[n], final.round[n] = True, latest.round[n]
    final.winner[n], final.price[n] = latest.winner[n], latest.price[n]
    for a in range(latest.bid.shape[1]):
        final.valuation[n, a], final.bid[n, a], final.paid[n, a] = (
            latest.valuation[n, a],
            latest.bid[n, a],
            latest.paid[n, a],
        )


@njit(cache=True)
def _end_episodes(auction: AuctionState, rules: Rules, latest: Round, final: Round, out: StepOutput) -> None:
    """Reset the copies that have played all rounds; final observations are written for all, valid for those."""
    some = False
    for n in range(len(auction.round)):
        ended = auction.round[n] >= rules.rounds
        some |= ended
        out.ended[n] = ended
        out.success[n] = ended and auction.efficient[n]
        out.terminated[n] = ended
    if some:
        observe(auction, rules, out.final_observation, out.final_state)
        for n in range(len(auction.round)):
            if out.ended[n]:
                _store_final(latest, final, n)
                _start_episode(auction, rules, n)


@njit(cache=True)
def step(auction: AuctionState, rules: Rules, bid: Array, latest: Round, final: Round, out: StepOutput) -> None:
    """Play one round in every copy with the bids `[N, A]`, and reset those that end."""
    _find_winners(auction, rules, bid)
    _pay(auction, rules, bid, latest, out.reward)
    _end_episodes(auction, rules, latest, final, out)
    _draw_valuations(auction, rules)
    observe(auction, rules, out.observation, out.state)
