"""Sealed-bid auctions of one item: first-price, second-price or all-pay, in one or several rounds.

Bidders know their own valuation, bid at the same time, and earn their valuation if they win, minus their payment. This
file holds the settings, the spaces and the `World`; the kernels of a round are in `kernels.py`, the theory in
`valuations.py`, `best_responses.py` and `equilibria.py`, metrics of trained bidders in `metrics.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from coterie.core.splitmix import seed_copies
from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, State, TimeStep
from coterie.core.validation import at_least, fits_in_memory, one_of, positive, whole, within
from coterie.core.world import Sign, rebuild
from coterie.worlds.auction import kernels, render
from coterie.worlds.auction.best_responses import AuctionModel, Rule
from coterie.worlds.auction.equilibria import symmetric_bid, symmetric_equilibrium
from coterie.worlds.auction.valuations import UNIFORM, ValuationSettings, tabulate

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
    """Bidders, payment rule, valuations and rounds of an auction."""

    num_bidders: int = 2  # bidder_0, bidder_1, …
    # the winner pays its bid; second_price: the second highest bid; all_pay: all pay their bids
    rule: Rule = "first_price"
    bid_levels: int = 0  # number of equally spaced bids from 0 to 1; 0: any number in [0, 1]
    valuations: ValuationSettings = UNIFORM  # distribution; drawn for every bidder and round
    reserve: float = 0.0  # lowest valid bid; a bid below it neither wins nor pays
    rounds: int = 1  # items sold in sequence in an episode
    budget: float | None = None  # spending limit of a bidder per episode; higher bids are cut to what is left

    def __post_init__(self) -> None:
        for name in ("num_bidders", "bid_levels", "rounds"):
            whole(name, getattr(self, name))
        at_least("num_bidders", self.num_bidders, 2)
        at_least("rounds", self.rounds, 1)
        within("reserve", self.reserve, 0, 1)
        one_of("rule", self.rule, get_args(Rule))
        if self.bid_levels < 0 or self.bid_levels == 1:
            raise ValueError(f"bid_levels must be 0 (any bid) or at least 2, got {self.bid_levels}")
        if self.budget is not None:
            positive("budget", self.budget)
            if not np.isfinite(self.budget):
                raise ValueError(f"budget must be finite, got {self.budget}; leave it out for no budget")
        tabulate(self.valuations)  # refuses distributions outside [0, 1]

    @property
    def model(self) -> AuctionModel:
        """The theoretical model of one round, without budgets."""
        return AuctionModel(self.num_bidders, tabulate(self.valuations), self.rule, self.reserve)


class Auction:
    """N copies of one auction. An episode succeeds if every item goes to a bidder with the highest valuation."""

    simultaneous = True
    draws_final = True

    def __init__(self, settings: AuctionSettings, num_envs: int) -> None:
        at_least("num_envs", num_envs, 1)
        self.settings, self.num_envs = settings, num_envs
        fits_in_memory(
            f"num_bidders={settings.num_bidders} in {num_envs} environments",
            settings.num_bidders * (150 + 64 * num_envs),  # a bidder's name, then its numbers in each environment
            "lower world.num_bidders or train.num_envs",
        )
        bidders, repeated, has_budget = settings.num_bidders, settings.rounds > 1, settings.budget is not None
        width = 1 + repeated * (4 + has_budget)
        self.state_size = bidders + repeated * (3 + bidders * (1 + has_budget))
        action = Discrete(settings.bid_levels) if settings.bid_levels else Box((1,), 0.0, 1.0)
        names = tuple(f"bidder_{i}" for i in range(bidders))
        self.agent_types: Mapping[str, AgentType] = {"bidder": AgentType(names, Box((width,), 0.0, 1.0), action)}
        table = tabulate(settings.valuations)
        self._rules = kernels.Rules(
            rule=RULES[settings.rule],
            reserve=float(settings.reserve),
            rounds=settings.rounds,
            budget=np.inf if settings.budget is None else float(settings.budget),
            has_budget=has_budget,
            points=table.atoms,
            levels=table.levels,
            values=table.values,
        )
        self.auction = _empty_state(num_envs, bidders)  # the full state
        self._round, self._final_round = (
            _empty_round(num_envs, bidders),
            _empty_round(num_envs, bidders),
        )  # the latest round; the last round of the latest finished episode
        self._bid = np.zeros((num_envs, bidders))
        self._out = _empty_output(num_envs, bidders, width, self.state_size)
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
        self.reset(0)  # a new world is valid before its first reset

    def reset(self, seed: int) -> TimeStep:
        """Reset every copy; copy i depends on (seed, i) only."""
        seed_copies(self.auction.random, seed, "auction")
        kernels.start_all(self.auction, self._rules)
        return self._observe_only()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Play one round; a bid out of range raises ValueError and changes nothing."""
        given, levels = np.asarray(actions["bidder"]), self.settings.bid_levels
        rows = (*self._bid.shape, *(() if levels else (1,)))
        if given.shape != rows or given.dtype.kind not in ("iu" if levels else "iuf"):
            what = "integers" if levels else "numbers"
            raise ValueError(f"actions of 'bidder' must be {what} of shape {rows}, got {given.dtype} {given.shape}")
        if levels:
            chosen = np.ascontiguousarray(given, dtype=np.int64)
            illegal = kernels.bids_from_discrete(chosen, levels, self.auction.left, self._bid)
        else:
            chosen = np.ascontiguousarray(given, dtype=np.float32)
            illegal = kernels.bids_from_continuous(chosen, self.auction.left, self._bid)
        if illegal >= 0:
            n, a = divmod(illegal, self.settings.num_bidders)
            if levels:
                raise ValueError(
                    f"bidder_{a} of copy {n} chose {given[n, a]}, outside {self.agent_types['bidder'].action}"
                )
            raise ValueError(f"bidder_{a} of copy {n} bid {given[n, a, 0]:g}; a bid must lie in [0, 1]")
        kernels.step(self.auction, self._rules, self._bid, self._round, self._final_round, self._out)
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all valuations, budgets, latest results and random states."""
        return {name: array.copy() for name, array in self.auction._asdict().items()}

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        for name, array in self.auction._asdict().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self.auction._asdict().items():
            array[...] = state[name]
        return self._observe_only()

    def _observe_only(self) -> TimeStep:
        """The time step of the present state, without rewards and ends."""
        out = self._out
        for array in (out.reward, out.terminated, out.ended, out.success, self._round.held):
            array[...] = 0
        kernels.observe(self.auction, self._rules, out.observation, out.state)
        return self._timestep

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """The latest round of one bidder; empty after a reset. Winner and price of an unsold item are None."""
        latest, a = self._round, self.agent_types["bidder"].agents.index(agent)
        if not latest.held[copy]:
            return {}
        winner = int(latest.winner[copy])
        sold = winner != kernels.NO_WINNER
        value, paid = float(latest.valuation[copy, a]), float(latest.paid[copy, a])
        return {
            "winner": self.agent_types["bidder"].agents[winner] if sold else None,
            "price": float(latest.price[copy]) if sold else None,
            "payoff": (value if winner == a else 0.0) - paid,
            "valuation": value,
            "bid": float(latest.bid[copy, a]),
            "paid": paid,
        }

    @functools.cached_property
    def _equilibrium(self) -> tuple[Array, Array]:
        """Valuations and the risk-neutral equilibrium bids there."""
        equilibrium = symmetric_equilibrium(self.settings.model)
        return equilibrium.values, equilibrium.bids

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the auction."""
        from coterie.worlds.auction.text import AuctionText

        return AuctionText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The risk-neutral bid of the symmetric equilibrium of one round, rounded to the grid of bids if there is one.

        With a discrete distribution of valuations the equilibrium is in mixed strategies; otherwise the bid is
        deterministic.
        """
        values = self.auction.valuation
        if self._rules.points:
            model = self.settings.model
            below, upto = model.valuations.below(values), model.valuations.cdf(values)
            # 1 − uniform [0, 1) lies in (0, 1], because ranks lie above `below`.
            bids = symmetric_bid(model, values, rank=below + (1.0 - random.random(values.shape)) * (upto - below))
        else:
            bids = np.interp(values, *self._equilibrium)
        if self.settings.bid_levels:
            return np.rint(bids * (self.settings.bid_levels - 1)).astype(np.int64)
        return bids[..., None].astype(np.float32)

    @staticmethod
    def report_section(runs: Sequence[Any]) -> ReportSection:
        """The auction's section of a report: bid functions and outcomes."""
        from coterie.studies.auction.report import report_section

        return report_section(runs)

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy: the latest round of this episode and the valuations of the item on sale now.

        With `final`, the last round of the copy's latest finished episode.
        """
        return render.frame(*self._scene(copy, final), copy, self.settings.reserve)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return render.ansi(*self._scene(copy, final), copy, self.settings.rounds)

    def legend(self) -> tuple[Sign, ...]:
        """The bidders, and what bars and lines mean."""
        bidders = tuple(a for spaces in self.agent_types.values() for a in spaces.agents)
        return render.legend(bidders, self.settings.reserve)

    def _scene(self, copy: int, final: bool) -> tuple[kernels.Round | None, Array | None]:
        """The round to draw, None before the first of an episode, and the present valuations to draw with it."""
        if final:
            return self._final_round, None
        this_episode = self._round.held[copy] and self.auction.round[copy] > 0
        return self._round if this_episode else None, self.auction.valuation[copy]


def parallel_env(
    render_mode: str | None = None,
    valuations: ValuationSettings | Mapping[str, Any] | str | None = None,
    **settings: Any,
) -> PettingZooEnv:
    """The auction as a PettingZoo parallel environment; `settings` are those of `AuctionSettings`."""
    from coterie.worlds.adapters.export import PettingZooEnv, settings_from_kwargs

    if callable(valuations):
        raise ValueError("valuations: give a custom function by name, valuations='package.module:Name'")
    if isinstance(valuations, str):
        valuations = {"name": valuations}
    if isinstance(valuations, Mapping):
        valuations = settings_from_kwargs(ValuationSettings, valuations)
    chosen = settings_from_kwargs(AuctionSettings, {"valuations": valuations or UNIFORM, **settings})
    return PettingZooEnv(Auction(chosen, num_envs=1), "auction", render_mode)


def _empty_state(num_envs: int, bidders: int) -> kernels.AuctionState:
    return kernels.AuctionState(
        random=np.zeros(num_envs, np.uint64),
        round=np.zeros(num_envs, np.int32),
        valuation=np.zeros((num_envs, bidders)),
        left=np.zeros((num_envs, bidders)),
        winner=np.zeros(num_envs, np.int32),
        price=np.zeros(num_envs),
        efficient=np.zeros(num_envs, np.bool_),
    )


def _empty_round(num_envs: int, bidders: int) -> kernels.Round:
    return kernels.Round(
        held=np.zeros(num_envs, np.bool_),
        round=np.zeros(num_envs, np.int32),
        valuation=np.zeros((num_envs, bidders)),
        bid=np.zeros((num_envs, bidders)),
        paid=np.zeros((num_envs, bidders)),
        winner=np.zeros(num_envs, np.int32),
        price=np.zeros(num_envs),
    )


def _empty_output(num_envs: int, bidders: int, width: int, state_size: int) -> kernels.StepOutput:
    return kernels.StepOutput(
        observation=np.zeros((num_envs, bidders, width), np.float32),
        final_observation=np.zeros((num_envs, bidders, width), np.float32),
        state=np.zeros((num_envs, state_size), np.float32),
        final_state=np.zeros((num_envs, state_size), np.float32),
        reward=np.zeros((num_envs, bidders), np.float32),
        terminated=np.zeros((num_envs, bidders), np.bool_),
        ended=np.zeros(num_envs, np.bool_),
        success=np.zeros(num_envs, np.bool_),
    )
