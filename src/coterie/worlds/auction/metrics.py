"""Learned bidders in numbers: how far from ideal they are, what they earn, what the seller gets.

A policy is asked for its greedy bids at many valuations; all numbers follow from these curves (`bidding.py`), so that
seeds are the only chance left in them. What is ideal comes from `equilibria.py`, with a sentence where nothing is
known. Runs of one table are one *set*: means over its runs come with 95% intervals. Pages are in `auction_report.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.config.schema import Config, GroupConfig, Part, SeatedRun, to_dict
from coterie.core.group import GroupSpec
from coterie.core.types import Array, CoterieError
from coterie.preferences.prospect import NEUTRAL, Prospect
from coterie.studies import statistics
from coterie.studies.statistics import Estimate
from coterie.training import build
from coterie.training.run import Run
from coterie.training.runner import Runner
from coterie.training.table import load
from coterie.worlds.auction import equilibria
from coterie.worlds.auction.best_responses import (
    Curve,
    Market,
    Result,
    WinChance,
    against,
    best_response,
    curve,
    distance,
    interim,
    result,
)
from coterie.worlds.auction.world import Auction, AuctionSettings

RANKS = (np.arange(256) + 0.5) / 256  # at which bidders are judged: each as likely
LEFT = 1e-3  # that a bidder may still gain by leaving curves that are called an equilibrium
DIP = 0.01  # a curve that falls by more than this is not called rising


# What is ideal ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theory:
    """A table and what is known of it before anybody has learned."""

    settings: AuctionSettings
    members: dict[str, tuple[int, ...]]  # group -> its seats
    tastes: dict[str, Prospect | None]  # None: nothing is known of its best bids
    words: dict[str, str]  # group -> its taste, for a reader
    ideal: list[Curve] | None  # one for each seat; None: not known
    remarks: tuple[str, ...]  # whole sentences

    @property
    def market(self) -> Market:
        return self.settings.market

    @property
    def values(self) -> Array:
        """The valuations at which bidders are judged, [256]."""
        return self.market.valuations.quantile(RANKS)

    @property
    def ideal_bids(self) -> Array:
        """The oracle's bids at these valuations, one row for each seat, [S, 256]."""
        return np.array([np.interp(RANKS, own.ranks, own.bids) for own in self.ideal or ()])

    @property
    def one_ideal(self) -> bool:
        """Whether everybody has the same ideal."""
        return self.ideal is not None and all(one is self.ideal[0] for one in self.ideal)


def taste_of(preference: Part) -> Prospect | None:
    """A group's taste for the outcomes of a single auction; None for those without an oracle."""
    settings = dataclasses.asdict(preference.settings)
    if preference.name == "individual":
        return NEUTRAL
    if preference.name == "cpt" and settings["scope"] == "interim":
        return Prospect(**{field.name: settings[field.name] for field in dataclasses.fields(Prospect)})
    return None


def in_words(preference: Part) -> str:
    """A group's taste for a reader."""
    taste = taste_of(preference)
    if taste is None:
        scope = dataclasses.asdict(preference.settings).get("scope")
        return preference.name if scope is None else f"{preference.name}, {scope}"
    return describe(taste)


def describe(taste: Prospect) -> str:
    """The numbers of a taste."""
    if taste == NEUTRAL:
        return "risk-neutral"
    aversion = f"λ {taste.loss_aversion:g}, γ {taste.gamma_gains:g} and {taste.gamma_losses:g}"
    return f"prospect theory: α {taste.alpha:g}, β {taste.beta:g}, {aversion}, reference {taste.reference:g}"


def theorise(
    settings: AuctionSettings, members: Mapping[str, Sequence[int]], tastes: Mapping[str, Prospect | None]
) -> Theory:
    """What is ideal at a table where groups sit on these seats."""
    remarks, words = [], {name: "" if taste is None else describe(taste) for name, taste in tastes.items()}
    if settings.rounds > 1:
        remarks.append(f"Bids and numbers are those of the first of {settings.rounds} rounds.")
        tastes = {name: taste if taste == NEUTRAL else None for name, taste in tastes.items()}
    if settings.bid_levels:
        step = 1 / (settings.bid_levels - 1)
        remarks.append(f"Bids lie on a grid {step:.3g} apart: best responses, too, but not the oracle's.")
    seated = {name: tuple(seats) for name, seats in members.items()}
    ideal, why = _ideal(settings, seated, tastes)
    if why is not None:
        remarks.append(f"There is no oracle for this table: {why}.")
    return Theory(settings, seated, dict(tastes), words, ideal, tuple(remarks))


def _ideal(
    settings: AuctionSettings, members: Mapping[str, tuple[int, ...]], tastes: Mapping[str, Prospect | None]
) -> tuple[list[Curve] | None, str | None]:
    """The equilibrium, one curve for each seat, or why there is none."""
    market, bidders = settings.market, range(settings.num_bidders)
    known = {name: taste for name, taste in tastes.items() if taste is not None}
    if settings.budget is not None:
        return None, "equilibria under budgets are not solved"
    if unknown := [name for name in tastes if name not in known]:
        return None, f"no equilibrium is known for the preference of {' and '.join(map(repr, unknown))}"
    if market.valuations.atoms:
        return None, "valuations are single points, where the equilibrium draws lots"
    agent_types = list(dict.fromkeys(known.values()))
    try:
        if len(agent_types) == 1 or market.rule == "second_price":  # at second prices tastes change nothing
            shared = equilibria.symmetric(market, agent_types[0])
            return [shared for _ in bidders], None
        counts = [sum(len(members[name]) for name, own in known.items() if own == kind) for kind in agent_types]
        found = equilibria.mixed(market, agent_types, counts)
    except (ValueError, CoterieError) as error:  # which say what is not solved
        return None, str(error)
    if found.residual > LEFT:
        return None, f"the curves found for it leave {found.residual:.2g} to gain"
    curves = found.curves
    group_of = {seat: name for name, seats in members.items() for seat in seats}
    return [curves[agent_types.index(known[group_of[seat]])] for seat in bidders], None


# What was learned ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """What came of a group, a mean over its bidders; None where it is not known."""

    distance: float | None  # to the oracle: root mean square over the valuations (L2)
    weighted_distance: float | None  # the same, valuations weighted by the oracle's chance to win
    off_best: float | None  # the largest |bid − best response| over the valuations
    weighted_off_best: float | None  # the largest of that times the best response's chance to win
    loss: float | None  # share of its worth given away among equilibrium bidders, against the oracle's bids
    regret: float | None  # share of its worth given away among the learned bidders, against the best response
    payoff: float | None  # money earned in an auction
    worth: float | None  # of an auction, in its own taste


MEASURES = {  # a table's rows
    "distance": "L2 distance to the oracle's bids",
    "weighted_distance": "L2, weighted by the oracle's chance to win",
    "off_best": "largest |bid − best response|",
    "weighted_off_best": "largest |bid − best response| × chance to win",
    "loss": "utility lost against the oracle, rivals in equilibrium",
    "regret": "utility lost against the best response, rivals as learned",
    "payoff": "payoff per auction and bidder, in money",
    "worth": "worth per auction and bidder, in its own taste",
}
OUTCOMES = {
    "revenue": "revenue per auction",
    "efficiency": "efficiency: share of the highest valuation realised",
    "highest_wins": "how often the highest valuation wins",
}


@dataclass(frozen=True)
class Judged:
    """One table of bidders."""

    bids: Array  # [S, 256] of every seat at the theory's valuations
    best: Array  # [S, 256] best responses to the others; NaN where none is known
    groups: dict[str, Numbers]
    outcome: Result


def curves(run: Run, checkpoint: str = "last") -> list[Curve]:
    """The greedy bids of every seat, in the first round, as they count: 0 for none, at most the budget.

    The last policies: the best are chosen by what they are paid, and rivals are paid best while all bid too little.
    """
    loaded = load(run.path, checkpoint)
    settings: AuctionSettings = loaded.config.world.settings

    def ask(values: Array) -> Array:
        world = Auction(settings, len(values))
        runner = Runner(world, [group.actor for group in loaded.groups], seed=0, greedy=True)
        runner.begin(0)
        state = world.save()
        state["valuation"][:] = values[:, None]
        runner.timestep = world.load(state)
        bids = np.zeros((len(values), settings.num_bidders))
        for group in loaded.groups:
            action = group.actor.act(runner.view(group.actor))[1].action
            chosen = action / (settings.bid_levels - 1) if settings.bid_levels else action[..., 0]
            bids[:, group.actor.group_spec.columns] = chosen
        bids = np.clip(bids, 0.0, 1.0 if settings.budget is None else min(settings.budget, 1.0))
        return np.where(bids < settings.reserve, 0.0, bids)

    all_bids = curve(settings.market, ask)
    return [dataclasses.replace(all_bids, bids=own) for own in all_bids.bids.T]


def judge(theory: Theory, seats: Sequence[Curve]) -> Judged:
    """Hold bidders, one curve for each seat, against what is ideal and against the best they could do."""
    bids = _counting(theory.market, np.array([np.interp(RANKS, own.ranks, own.bids) for own in seats]))
    best, groups = np.full_like(bids, np.nan), {}
    for name, members in theory.members.items():
        found: list[Numbers] = []
        for seat in members:
            twin = next((k for k, other in enumerate(members[: len(found)]) if (bids[other] == bids[seat]).all()), None)
            if twin is None:
                numbers, best[seat] = _judge_seat(theory, theory.tastes[name], seats, seat, bids[seat])
                found.append(numbers)
            else:  # who bids alike has the same rivals
                best[seat] = best[members[twin]]
                found.append(found[twin])
        groups[name] = Numbers(*(_mean(column) for column in zip(*map(dataclasses.astuple, found), strict=True)))
    outcome = result(theory.market, seats)
    return Judged(bids, best, groups, outcome)


def _mean(column: Sequence[float | None]) -> float | None:
    known = [number for number in column if number is not None]
    return float(np.mean(known)) if len(known) == len(column) else None


def _judge_seat(
    theory: Theory, taste: Prospect | None, seats: Sequence[Curve], seat: int, bids: Array
) -> tuple[Numbers, Array]:
    """One bidder's numbers and its best responses."""
    market, values, levels = theory.market, theory.values, theory.settings.bid_levels
    chance = _rivals(seats, seat)
    payoff = float(interim(market, NEUTRAL, values, bids, chance).mean())
    worth = None if taste is None else float(interim(market, taste, values, bids, chance).mean())
    near = weighted = loss = off = weighted_off = regret = None
    best = np.full_like(bids, np.nan)
    if theory.ideal is not None and taste is not None:
        among = _rivals(theory.ideal, seat)
        ideal = _counting(market, theory.ideal_bids[seat])
        near, weighted = distance(bids, ideal), distance(bids, ideal, _winning(market, among, ideal))
        own, reached = (interim(market, taste, values, b, among).mean() for b in (bids, ideal))
        loss = _share_lost(taste, float(own), float(reached))
    if worth is not None and theory.settings.budget is None and taste is not None:
        response = best_response(market, taste, values, chance, levels)
        best = _counting(market, response.bids)
        apart = np.abs(bids - best)
        off, weighted_off = float(apart.max()), float((apart * _winning(market, chance, best)).max())
        regret = _share_lost(taste, worth, float(response.worth.mean()))
    return Numbers(near, weighted, off, weighted_off, loss, regret, payoff, worth), best


def _rivals(seats: Sequence[Curve], seat: int) -> WinChance:
    return against([other for group_spec, other in enumerate(seats) if group_spec != seat])


def _counting(market: Market, bids: Array) -> Array:
    """Bids as they count: 0 for none."""
    return np.where(bids < market.reserve, 0.0, bids)


def _winning(market: Market, chance: WinChance, bids: Array) -> Array:
    """How likely bids win; what lies below the reserve never does."""
    return np.where(bids < market.reserve, 0.0, chance(bids))


def _share_lost(taste: Prospect, worth: float, reached: float) -> float | None:
    """As a share of what could be reached; with a reference, staying away is not worth 0 and a share says nothing."""
    return 1.0 - worth / reached if reached > 0 and taste.reference == 0 else None


# Over several runs --------------------------------------------------------------------------------------


def measure(runs: Sequence[Run]) -> dict[str, Any]:
    """All numbers of runs of one table, as JSON."""
    if len(found := sets(runs)) != 1:
        raise CoterieError(f"these runs are of {len(found)} different tables; measure those of one table")
    return summarise(*judge_runs(found[0]))


def sets(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs put together by table: those that differ in nothing but their seeds and how they were run."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        plain = to_dict(run.config())
        for group in plain["groups"].values():
            group["policy"].pop("run", None)  # a player of an earlier run: one for each seed, perhaps
        length = plain["train"]["total_steps"]
        found.setdefault(json.dumps([plain["world"], plain["groups"], length]), []).append(run)
    return list(found.values())


def theory_of(config: Config) -> Theory:
    """What is ideal at a config's table."""
    group_specs = build.build_group_specs(config, Auction(config.world.settings, 1))
    members = {name: tuple(map(int, group_spec.columns)) for name, group_spec in group_specs.items()}
    preferences = {name: _preference(group, group_specs[name]) for name, group in config.groups.items()}
    tastes = {name: taste_of(preference) for name, preference in preferences.items()}
    words = {name: in_words(preference) for name, preference in preferences.items()}
    return dataclasses.replace(theorise(config.world.settings, members, tastes), words=words)


def _preference(group: GroupConfig, group_spec: GroupSpec) -> Part:
    """How a group values its rewards; who only plays and says nothing of it, as when it learned."""
    if group.learner is not None or not isinstance(group.policy, SeatedRun) or group.preference.name != "individual":
        return group.preference
    earlier = Run.open(group.policy.run).config()
    return earlier.groups[build.earlier_group(group.policy, group_spec, earlier)].preference


def judge_runs(runs: Sequence[Run]) -> tuple[Theory, list[Judged]]:
    """A set of runs beside what is ideal."""
    theory = theory_of(runs[0].config())
    return theory, [judge(theory, curves(run)) for run in runs]


def estimate(numbers: Sequence[float | None]) -> Estimate | None:
    """Their mean with its interval; None where one is not known."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    return statistics.stratified_bootstrap([np.array(known)], statistics.mean, statistics.bootstrap_stream())


def summarise(theory: Theory, tables: Sequence[Judged]) -> dict[str, Any]:
    """Means and intervals over tables, beside the oracle's numbers, as JSON."""
    ideal = None if theory.ideal is None else judge(theory, theory.ideal)
    at = [round(255 * share / 10) for share in range(11)]
    groups: dict[str, Any] = {}
    for name, members in theory.members.items():
        rows = list(members)
        groups[name] = {
            "taste": theory.words[name],
            "bidders": len(members),
            "learned": {m: _plain([getattr(one.groups[name], m) for one in tables]) for m in MEASURES},
            "oracle": None if ideal is None else {m: getattr(ideal.groups[name], m) for m in ("payoff", "worth")},
            "bids": np.mean([one.bids[rows].mean(axis=0) for one in tables], axis=0)[at].round(5).tolist(),
            "oracle_bids": None if ideal is None else ideal.bids[rows[0]][at].round(5).tolist(),
        }
    return {
        "runs": len(tables),
        "world": dataclasses.asdict(theory.settings),
        "remarks": list(theory.remarks),
        "valuations": theory.values[at].round(5).tolist(),
        "groups": groups,
        "auction": {
            "learned": {m: _plain([_outcome(one, m) for one in tables]) for m in OUTCOMES},
            "oracle": None if ideal is None else ideal.outcome._asdict(),
            "neutral": neutral(theory),
        },
    }


def _plain(numbers: Sequence[float | None]) -> dict[str, Any] | None:
    found = estimate(numbers)
    return None if found is None else found.to_dict() | {"seeds": list(numbers)}


def _outcome(judged: Judged, name: str) -> float | None:
    """Of an auction's outcome; how often the highest wins is known for rising curves only."""
    rising = (np.maximum.accumulate(judged.bids, axis=1) - judged.bids).max() <= DIP
    return float(getattr(judged.outcome, name)) if rising or name != "highest_wins" else None


def neutral(theory: Theory) -> dict[str, float] | None:
    """The outcome and everybody's payoff if all were risk-neutral, in equilibrium."""
    if theory.settings.budget is not None:
        return None
    market, everybody = theory.market, [equilibria.symmetric(theory.market)] * theory.settings.num_bidders
    bids = _counting(market, np.interp(RANKS, everybody[0].ranks, everybody[0].bids))
    payoff = float(interim(market, NEUTRAL, theory.values, bids, _rivals(everybody, 0)).mean())
    return result(market, everybody)._asdict() | {"payoff": payoff}
