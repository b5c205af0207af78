"""Compiled loops of the auction: bids, who wins and pays, observations, new valuations.

Every kernel runs over all N copies. Numba's cache of `step` does not notice changes to `randomness.py`: after an edit
there, remove `__pycache__`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.worlds.random import uniform

FIRST_PRICE, SECOND_PRICE, ALL_PAY = 0, 1, 2
NOBODY = -1


class Books(NamedTuple):
    """All that decides the future of N copies. What was sold is that of this episode's latest round."""

    random: Array  # [N] uint64: state of each copy's generator
    round: Array  # [N] int32: rounds played in this episode
    valuation: Array  # [N, A] float64: of the item on sale now
    left: Array  # [N, A] float64: what may still be spent in this episode
    winner: Array  # [N] int32: who won the latest round, or −1
    price: Array  # [N] float64: what the winner paid, or 0
    efficient: Array  # [N] bool: so far every item went to the highest valuation


class Sale(NamedTuple):
    """One round as it was decided, to be told and drawn; it decides nothing."""

    held: Array  # [N] bool: there was one
    round: Array  # [N] int32: its number, from 1
    valuation: Array  # [N, A] float64
    bid: Array  # [N, A] float64: as it counted
    paid: Array  # [N, A] float64
    winner: Array  # [N] int32
    price: Array  # [N] float64


class Rules(NamedTuple):
    """The settings that the kernels read."""

    rule: int
    reserve: float
    rounds: int
    budget: float  # inf without one
    limited: bool  # there is a budget to be told
    points: bool  # valuations are single points
    levels: Array  # [K] float64: the table of valuations, see `valuations.py`
    values: Array  # [K] float64


class Outcome(NamedTuple):
    """What a step leaves behind."""

    observation: Array  # [N, A, D] float32
    final_observation: Array  # [N, A, D] float32, written where the copy ended
    state: Array  # [N, Z] float32
    final_state: Array  # [N, Z] float32, written where the copy ended
    reward: Array  # [N, A] float32
    terminated: Array  # [N, A] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


# Bids -----------------------------------------------------------------------------------------------


@njit(cache=True)
def place_continuous(given: Array, left: Array, bid: Array) -> int:
    """Write float32 bids `[N, A, 1]` into `bid` [N, A], none above what is left to spend.

    Returns the place (copy · A + bidder) of a bid outside [0, 1], or −1.
    """
    num_envs, bidders = bid.shape
    for n in range(num_envs):
        for a in range(bidders):
            if not 0.0 <= given[n, a, 0] <= 1.0:  # NaN, too
                return n * bidders + a
            bid[n, a] = min(np.float64(given[n, a, 0]), left[n, a])
    return -1


@njit(cache=True)
def place_discrete(given: Array, levels: int, left: Array, bid: Array) -> int:
    """The same from choices `[N, A]`: k bids k / (levels − 1)."""
    num_envs, bidders = bid.shape
    for n in range(num_envs):
        for a in range(bidders):
            if given[n, a] < 0 or given[n, a] >= levels:
                return n * bidders + a
            bid[n, a] = min(given[n, a] / (levels - 1), left[n, a])
    return -1


@njit(cache=True)
def _lot(random: Array, bids: Array, n: int, best: float, equals: int) -> int:
    """One of those who bid `best`, each as likely."""
    skip = int(uniform(random, n) * equals) if equals > 1 else 0
    for a in range(bids.shape[1]):
        if bids[n, a] == best:
            if skip == 0:
                return a
            skip -= 1
    return NOBODY


@njit(cache=True)
def _decide(books: Books, rules: Rules, bid: Array) -> None:
    """Find the winner among the bids that reach the reserve, by lot among equals, and the price."""
    random, winner, price, reserve = books.random, books.winner, books.price, rules.reserve
    second_price = rules.rule == SECOND_PRICE
    for n in range(len(winner)):
        best, second, equals = -1.0, -1.0, 0
        for a in range(bid.shape[1]):
            b = bid[n, a]
            if b < reserve:
                continue
            if b > best:
                best, second, equals = b, best, 1
            elif b == best:
                second, equals = b, equals + 1
            elif b > second:
                second = b
        winner[n] = _lot(random, bid, n, best, equals) if equals > 0 else NOBODY
        price[n] = 0.0
        if equals > 0:
            price[n] = max(second, reserve) if second_price else best


@njit(cache=True)
def _settle(books: Books, rules: Rules, bid: Array, sale: Sale, reward: Array) -> None:
    """Let everybody pay, and write down the round."""
    all_pay, reserve = rules.rule == ALL_PAY, rules.reserve
    valuation, left, efficient, rounds = books.valuation, books.left, books.efficient, books.round
    winners, price = books.winner, books.price
    sale_value, sale_bid, sale_paid = sale.valuation, sale.bid, sale.paid
    for n in range(len(winners)):
        winner, highest = winners[n], 0.0
        for a in range(bid.shape[1]):
            paid = price[n] if a == winner else 0.0
            if all_pay and bid[n, a] >= reserve:
                paid = bid[n, a]
            value = valuation[n, a]
            reward[n, a] = (value if a == winner else 0.0) - paid
            left[n, a] -= paid
            sale_value[n, a], sale_bid[n, a], sale_paid[n, a] = value, bid[n, a], paid
            highest = max(highest, value)
        efficient[n] = efficient[n] and winner != NOBODY and valuation[n, winner] == highest
        rounds[n] += 1
    sale.held[:] = True
    sale.round[:] = rounds
    sale.winner[:] = winners
    sale.price[:] = price


# Observations ---------------------------------------------------------------------------------------


@njit(cache=True)
def observe(books: Books, rules: Rules, seen: Array, state: Array) -> None:
    """Write what every bidder of every copy sees now into `seen` [N, A, D], and the whole into `state` [N, Z].

    Own valuation; in repeated auctions also the share of rounds played, whether the last item was sold, its price,
    whether I won it, and the share of the budget that is left. The state holds everybody's.
    """
    valuation = books.valuation
    num_envs, bidders = valuation.shape
    for n in range(num_envs):
        for a in range(bidders):
            seen[n, a, 0] = valuation[n, a]
            state[n, a] = valuation[n, a]
    if rules.rounds > 1:
        _observe_history(books, rules, seen, state)


@njit(cache=True)
def _observe_history(books: Books, rules: Rules, seen: Array, state: Array) -> None:
    winner, price, rounds, left = books.winner, books.price, books.round, books.left
    num_envs, bidders = left.shape
    for n in range(num_envs):
        played, sold = rounds[n] / rules.rounds, winner[n] != NOBODY
        state[n, bidders], state[n, bidders + 1], state[n, bidders + 2] = played, sold, price[n]
        for a in range(bidders):
            won = winner[n] == a
            seen[n, a, 1], seen[n, a, 2], seen[n, a, 3], seen[n, a, 4] = played, sold, price[n], won
            state[n, bidders + 3 + a] = won
            if rules.limited:
                share = left[n, a] / rules.budget
                seen[n, a, 5] = share
                state[n, 2 * bidders + 3 + a] = share


# Episodes -------------------------------------------------------------------------------------------


@njit(cache=True)
def _draw(books: Books, rules: Rules) -> None:
    """A new item in every copy: everybody's valuation by the table of quantiles."""
    random, valuation, levels, values = books.random, books.valuation, rules.levels, rules.values
    pieces = len(levels) - 1
    for n in range(len(valuation)):
        for a in range(valuation.shape[1]):
            luck = uniform(random, n)
            if rules.points:  # pieces of any length
                valuation[n, a] = values[np.searchsorted(levels, luck, side="right") - 1]
            else:  # equally long
                k = int(luck * pieces)
                valuation[n, a] = values[k] + (luck * pieces - k) * (values[k + 1] - values[k])


@njit(cache=True)
def _begin(books: Books, rules: Rules, n: int) -> None:
    """Empty the books of copy n for a new episode; its item is drawn apart."""
    books.round[n] = 0
    books.winner[n] = NOBODY
    books.price[n] = 0.0
    books.efficient[n] = True
    books.left[n] = rules.budget


@njit(cache=True)
def begin(books: Books, rules: Rules) -> None:
    """Begin a new episode in every copy."""
    for n in range(len(books.round)):
        _begin(books, rules, n)
    _draw(books, rules)


@njit(cache=True)
def _keep(sale: Sale, last: Sale, n: int) -> None:
    """Remember how an episode ended, for pictures of it."""
    last.held[n], last.round[n] = True, sale.round[n]
    last.winner[n], last.price[n] = sale.winner[n], sale.price[n]
    for a in range(sale.bid.shape[1]):
        last.valuation[n, a], last.bid[n, a], last.paid[n, a] = sale.valuation[n, a], sale.bid[n, a], sale.paid[n, a]


@njit(cache=True)
def _end(books: Books, rules: Rules, sale: Sale, last: Sale, out: Outcome) -> None:
    """Say who has played all rounds, and begin anew there; what is final is written for all, valid for those."""
    some = False
    for n in range(len(books.round)):
        ended = books.round[n] >= rules.rounds
        some |= ended
        out.ended[n] = ended
        out.success[n] = ended and books.efficient[n]
        out.terminated[n] = ended
    if some:
        observe(books, rules, out.final_observation, out.final_state)
        for n in range(len(books.round)):
            if out.ended[n]:
                _keep(sale, last, n)
                _begin(books, rules, n)


@njit(cache=True)
def step(books: Books, rules: Rules, bid: Array, sale: Sale, last: Sale, out: Outcome) -> None:
    """Hold one round in every copy with the bids `[N, A]`, and begin anew those for which it was the last."""
    _decide(books, rules, bid)
    _settle(books, rules, bid, sale, out.reward)
    _end(books, rules, sale, last, out)
    _draw(books, rules)
    observe(books, rules, out.observation, out.state)
