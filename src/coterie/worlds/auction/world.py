"""Sealed-bid auctions of one item: first-price, second-price or all-pay, once or over several rounds.

Everybody knows its own valuation, bids at the same time as the others, and earns what the item is worth to it less what
it pays. This file holds the settings, the spaces and the `World`; what happens in a round is in `auction_kernels.py`,
what good bidders do in `equilibria.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, State, TimeStep
from coterie.core.validation import at_least, positive, whole, within
from coterie.core.world import rebuild
from coterie.worlds.auction import kernels
from coterie.worlds.auction import render as draw
from coterie.worlds.auction.best_responses import Market, Rule
from coterie.worlds.auction.equilibria import symmetric, symmetric_bid
from coterie.worlds.auction.valuations import UNIFORM, ValuationSettings, tabulate
from coterie.worlds.random import seed_copies

if TYPE_CHECKING:
    from coterie.core.world import ReportSection
    from coterie.worlds.adapters.export import PettingZooEnv

RULES: dict[str, int] = {
    "first_price": kernels.FIRST_PRICE,
    "second_price": kernels.SECOND_PRICE,
    "all_pay": kernels.ALL_PAY,
}


@dataclass(frozen=True)
class AuctionSettings:
    """Who bids for what, by which rule."""

    num_bidders: int = 2  # bidder_0, bidder_1, …
    rule: Rule = "first_price"  # the winner pays its bid; second_price: the next one's; all_pay: all pay theirs
    bid_levels: int = 0  # so many bids from 0 to 1, equally far apart, to choose from; 0: any number in [0, 1]
    valuations: ValuationSettings = UNIFORM  # drawn anew for every bidder and round
    reserve: float = 0.0  # a bid below it is none: it neither wins nor pays
    rounds: int = 1  # items sold one after the other in an episode
    budget: float | None = None  # what a bidder may spend in an episode; bids above what is left count as that

    def __post_init__(self) -> None:
        for name in ("num_bidders", "bid_levels", "rounds"):
            whole(name, getattr(self, name))
        at_least("num_bidders", self.num_bidders, 2)
        at_least("rounds", self.rounds, 1)
        within("reserve", self.reserve, 0, 1)
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {self.rule!r}")
        if self.bid_levels < 0 or self.bid_levels == 1:
            raise ValueError(f"bid_levels must be 0 (any bid) or at least 2, got {self.bid_levels}")
        if self.budget is not None:
            positive("budget", self.budget)
            if not np.isfinite(self.budget):
                raise ValueError(f"budget must be finite, got {self.budget}; leave it out to have none")
        tabulate(self.valuations)  # refuses what lies outside [0, 1]

    @property
    def market(self) -> Market:
        """One round of it as theory sees it, budgets left out."""
        return Market(self.num_bidders, tabulate(self.valuations), self.rule, self.reserve)


class Auction:
    """N copies of one auction. An episode succeeds when every item went to who valued it most."""

    simultaneous = True
    draws_final = True

    def __init__(self, settings: AuctionSettings, num_envs: int) -> None:
        at_least("num_envs", num_envs, 1)
        self.settings, self.num_envs = settings, num_envs
        bidders, repeated, limited = settings.num_bidders, settings.rounds > 1, settings.budget is not None
        width = 1 + repeated * (4 + limited)
        self.state_size = bidders + repeated * (3 + bidders * (1 + limited))
        action = Discrete(settings.bid_levels) if settings.bid_levels else Box((1,), 0.0, 1.0)
        names = tuple(f"bidder_{i}" for i in range(bidders))
        self.agent_types: Mapping[str, AgentType] = {"bidder": AgentType(names, Box((width,), 0.0, 1.0), action)}
        table = tabulate(settings.valuations)
        self._rules = kernels.Rules(
            rule=RULES[settings.rule],
            reserve=float(settings.reserve),
            rounds=settings.rounds,
            budget=np.inf if settings.budget is None else float(settings.budget),
            limited=limited,
            points=table.atoms,
            levels=table.levels,
            values=table.values,
        )
        self.books = _empty_books(num_envs, bidders)  # all that decides the future
        self._sale, self._last = (
            _empty_sale(num_envs, bidders),
            _empty_sale(num_envs, bidders),
        )  # latest round, latest end
        self._bid = np.zeros((num_envs, bidders))
        self._out = _empty_outcome(num_envs, bidders, width, self.state_size)
        out = self._out
        agent_step = AgentStep(
            observation=out.observation,
            acting=np.ones_like(out.terminated),
            reward=out.reward,
            terminated=out.terminated,
            truncated=np.zeros_like(out.terminated),
            final_observation=out.final_observation,
        )
        self._timestep = TimeStep({"bidder": agent_step}, out.ended, out.success, out.state, out.final_state)
        self.reset(0)  # so that a world just built is already a valid one

    def reset(self, seed: int) -> TimeStep:
        """Start every copy anew; copy i depends on (seed, i) only."""
        seed_copies(self.books.random, seed, "auction")
        kernels.begin(self.books, self._rules)
        return self._calm()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Hold one round; a bid out of range is a ValueError and changes nothing."""
        given, levels = np.asarray(actions["bidder"]), self.settings.bid_levels
        rows = (*self._bid.shape, *(() if levels else (1,)))
        if given.shape != rows or given.dtype.kind not in ("iu" if levels else "iuf"):
            what = "integers" if levels else "numbers"
            raise ValueError(f"actions of 'bidder' must be {what} of shape {rows}, got {given.dtype} {given.shape}")
        if levels:
            chosen = np.ascontiguousarray(given, dtype=np.int64)
            wrong = kernels.place_discrete(chosen, levels, self.books.left, self._bid)
        else:
            chosen = np.ascontiguousarray(given, dtype=np.float32)
            wrong = kernels.place_continuous(chosen, self.books.left, self._bid)
        if wrong >= 0:
            n, a = divmod(wrong, self.settings.num_bidders)
            if levels:
                raise ValueError(
                    f"bidder_{a} of copy {n} chose {given[n, a]}, outside {self.agent_types['bidder'].action}"
                )
            raise ValueError(f"bidder_{a} of copy {n} bid {given[n, a, 0]:g}; a bid must lie in [0, 1]")
        kernels.step(self.books, self._rules, self._bid, self._sale, self._last, self._out)
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all valuations, budgets, histories and random states."""
        return {name: array.copy() for name, array in self.books._asdict().items()}

    def load(self, state: State) -> TimeStep:
        """Return to a saved moment."""
        for name, array in self.books._asdict().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self.books._asdict().items():
            array[...] = state[name]
        return self._calm()

    def _calm(self) -> TimeStep:
        """Say what bidders see, with no reward and no end."""
        out = self._out
        for array in (out.reward, out.terminated, out.ended, out.success, self._sale.held):
            array[...] = 0
        kernels.observe(self.books, self._rules, out.observation, out.state)
        return self._timestep

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """How the latest round went for one bidder; nothing after a reset. Unsold: winner and price are None."""
        sale, a = self._sale, self.agent_types["bidder"].agents.index(agent)
        if not sale.held[copy]:
            return {}
        winner = int(sale.winner[copy])
        sold = winner != kernels.NOBODY
        value, paid = float(sale.valuation[copy, a]), float(sale.paid[copy, a])
        return {
            "winner": self.agent_types["bidder"].agents[winner] if sold else None,
            "price": float(sale.price[copy]) if sold else None,
            "payoff": (value if winner == a else 0.0) - paid,
            "valuation": value,
            "bid": float(sale.bid[copy, a]),
            "paid": paid,
        }

    @functools.cached_property
    def _reference(self) -> tuple[Array, Array]:
        """Valuations and the equilibrium bids there."""
        curve = symmetric(self.settings.market)
        return curve.values, curve.bids

    def text_codec(self, agent_type: str) -> TextCodec:
        """The auction in words."""
        from coterie.worlds.auction.text import AuctionText

        return AuctionText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The bid of risk-neutral bidders in the symmetric equilibrium of one round; on a grid the nearest.

        Where valuations are single points this equilibrium draws lots; else nothing is left to chance.
        """
        values = self.books.valuation
        if self._rules.points:
            market = self.settings.market
            below, upto = market.valuations.below(values), market.valuations.cdf(values)
            # 1 − a number from [0, 1), since ranks lie above `below`.
            bids = symmetric_bid(market, values, rank=below + (1.0 - random.random(values.shape)) * (upto - below))
        else:
            bids = np.interp(values, *self._reference)
        if self.settings.bid_levels:
            return np.rint(bids * (self.settings.bid_levels - 1)).astype(np.int64)
        return bids[..., None].astype(np.float32)

    @staticmethod
    def report_section(runs: Sequence[Any]) -> ReportSection:
        """Bid curves and what comes of them, for a report."""
        from coterie.worlds.auction.report import report_section

        return report_section(runs)

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy: the latest round of this episode and the valuations of the item on sale now.

        With `final`, the last round of the copy's latest finished episode.
        """
        return draw.frame(*self._scene(copy, final), copy, self.settings.reserve)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return draw.ansi(*self._scene(copy, final), copy, self.settings.rounds)

    def _scene(self, copy: int, final: bool) -> tuple[kernels.Sale | None, Array | None]:
        """The round to draw, None before the first of an episode, and the present valuations to draw with it."""
        if final:
            return self._last, None
        this_episode = self._sale.held[copy] and self.books.round[copy] > 0
        return self._sale if this_episode else None, self.books.valuation[copy]


def parallel_env(
    render_mode: str | None = None,
    valuations: ValuationSettings | Mapping[str, Any] | str | None = None,
    **settings: Any,
) -> PettingZooEnv:
    """The same world as a PettingZoo parallel environment; `settings` are those of `AuctionSettings`."""
    from coterie.worlds.adapters.export import PettingZooEnv, settings_from_kwargs

    if callable(valuations):
        raise ValueError("valuations: name a function of one's own, valuations='package.module:Name'")
    if isinstance(valuations, str):
        valuations = {"name": valuations}
    if isinstance(valuations, Mapping):
        valuations = settings_from_kwargs(ValuationSettings, valuations)
    chosen = settings_from_kwargs(AuctionSettings, {"valuations": valuations or UNIFORM, **settings})
    return PettingZooEnv(Auction(chosen, num_envs=1), "auction", render_mode)


def _empty_books(num_envs: int, bidders: int) -> kernels.Books:
    return kernels.Books(
        random=np.zeros(num_envs, np.uint64),
        round=np.zeros(num_envs, np.int32),
        valuation=np.zeros((num_envs, bidders)),
        left=np.zeros((num_envs, bidders)),
        winner=np.zeros(num_envs, np.int32),
        price=np.zeros(num_envs),
        efficient=np.zeros(num_envs, np.bool_),
    )


def _empty_sale(num_envs: int, bidders: int) -> kernels.Sale:
    return kernels.Sale(
        held=np.zeros(num_envs, np.bool_),
        round=np.zeros(num_envs, np.int32),
        valuation=np.zeros((num_envs, bidders)),
        bid=np.zeros((num_envs, bidders)),
        paid=np.zeros((num_envs, bidders)),
        winner=np.zeros(num_envs, np.int32),
        price=np.zeros(num_envs),
    )


def _empty_outcome(num_envs: int, bidders: int, width: int, state_size: int) -> kernels.Outcome:
    return kernels.Outcome(
        observation=np.zeros((num_envs, bidders, width), np.float32),
        final_observation=np.zeros((num_envs, bidders, width), np.float32),
        state=np.zeros((num_envs, state_size), np.float32),
        final_state=np.zeros((num_envs, state_size), np.float32),
        reward=np.zeros((num_envs, bidders), np.float32),
        terminated=np.zeros((num_envs, bidders), np.bool_),
        ended=np.zeros(num_envs, np.bool_),
        success=np.zeros(num_envs, np.bool_),
    )
