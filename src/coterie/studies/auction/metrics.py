"""Metrics of learned bidders: distance to equilibrium, utility loss, regret, payoffs and revenue.

The greedy bids of every policy are tabulated at many valuations, and all numbers are computed from these bid functions,
so that the only randomness is that of the training seeds. The equilibrium comes from `equilibria.py`; where it is not
known, a remark says why. Means over the runs of one table come with 95% intervals. The report is in `report.py`.
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
from coterie.runs.run import Run
from coterie.studies import statistics
from coterie.studies.statistics import Estimate
from coterie.training import build
from coterie.training.runner import Runner
from coterie.training.table import load
from coterie.worlds.auction import equilibria
from coterie.worlds.auction.best_responses import (
    AuctionModel,
    AuctionOutcome,
    BidFunction,
    WinProbability,
    best_response,
    bid_function,
    expected_outcome,
    grid_bids,
    interim_utility,
    l2_distance,
    win_probability_against,
)
from coterie.worlds.auction.world import Auction, AuctionSettings

RANKS = (np.arange(256) + 0.5) / 256  # equally likely ranks at which bids are compared
MAX_RESIDUAL = 1e-3  # largest gain from deviating in what is accepted as an equilibrium
MAX_DIP = 0.01  # largest decrease of a bid function that still counts as non-decreasing


# Equilibrium -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """An auction with its groups of bidders, and its equilibrium if known."""

    settings: AuctionSettings
    members: dict[str, tuple[int, ...]]  # group -> indices of its bidders
    risks: dict[str, Prospect | None]  # group -> risk preference; None: no best response is known
    labels: dict[str, str]  # group -> risk preference as text
    equilibrium: list[BidFunction] | None  # one bid function per bidder; None: not known
    remarks: tuple[str, ...]  # whole sentences

    @property
    def model(self) -> AuctionModel:
        return self.settings.model

    @property
    def values(self) -> Array:
        """The valuations at which bids are compared, [256]."""
        return self.model.valuations.quantile(RANKS)

    @property
    def equilibrium_bids(self) -> Array:
        """The equilibrium bids at these valuations, [A, 256]."""
        return np.array([np.interp(RANKS, own.ranks, own.bids) for own in self.equilibrium or ()])

    @property
    def is_symmetric(self) -> bool:
        """Whether all bidders have the same equilibrium bid function."""
        return self.equilibrium is not None and all(one is self.equilibrium[0] for one in self.equilibrium)


def risk_of(preference: Part) -> Prospect | None:
    """The risk preference over outcomes of one auction; None for preferences without a known best response."""
    settings = dataclasses.asdict(preference.settings)
    if preference.name == "individual":
        return NEUTRAL
    if preference.name == "cpt" and settings["scope"] == "interim":
        return Prospect(**{field.name: settings[field.name] for field in dataclasses.fields(Prospect)})
    return None


def preference_label(preference: Part) -> str:
    """A group's preference as text."""
    risk = risk_of(preference)
    if risk is None:
        scope = dataclasses.asdict(preference.settings).get("scope")
        return preference.name if scope is None else f"{preference.name}, {scope}"
    return risk_label(risk)


def risk_label(risk: Prospect) -> str:
    """A risk preference as text."""
    if risk == NEUTRAL:
        return "risk-neutral"
    aversion = f"λ {risk.loss_aversion:g}, γ {risk.gamma_gains:g} and {risk.gamma_losses:g}"
    return f"prospect theory: α {risk.alpha:g}, β {risk.beta:g}, {aversion}, reference {risk.reference:g}"


def make_benchmark(
    settings: AuctionSettings, members: Mapping[str, Sequence[int]], risks: Mapping[str, Prospect | None]
) -> Benchmark:
    """Solve the equilibrium of an auction whose bidders belong to these groups."""
    remarks, labels = [], {name: "" if risk is None else risk_label(risk) for name, risk in risks.items()}
    if settings.rounds > 1:
        remarks.append(f"Bids and numbers are those of the first of {settings.rounds} rounds.")
        risks = {name: risk if risk == NEUTRAL else None for name, risk in risks.items()}
    if settings.bid_levels:
        step = 1 / (settings.bid_levels - 1)
        remarks.append(f"Bids and best responses lie on a grid {step:.3g} apart, equilibrium bids do not.")
    bidders = {name: tuple(own) for name, own in members.items()}
    equilibrium, why = _solve_equilibrium(settings, bidders, risks)
    if why is not None:
        remarks.append(f"The equilibrium of this table is not known: {why}.")
    return Benchmark(settings, bidders, dict(risks), labels, equilibrium, tuple(remarks))


def _solve_equilibrium(
    settings: AuctionSettings, members: Mapping[str, tuple[int, ...]], risks: Mapping[str, Prospect | None]
) -> tuple[list[BidFunction] | None, str | None]:
    """The equilibrium, one bid function per bidder, or the reason why it is not known."""
    model, bidders = settings.model, range(settings.num_bidders)
    known = {name: risk for name, risk in risks.items() if risk is not None}
    if settings.budget is not None:
        return None, "auctions with a budget are not solved"
    if unknown := [name for name in risks if name not in known]:
        return None, f"no equilibrium is known for the preference of {' and '.join(map(repr, unknown))}"
    if model.valuations.atoms:
        return None, "with points as valuations it is in mixed strategies"
    distinct = list(dict.fromkeys(known.values()))
    try:
        if len(distinct) == 1 or model.rule == "second_price":  # second price: all bid their valuation
            shared = equilibria.symmetric_equilibrium(model, distinct[0])
            return [shared for _ in bidders], None
        counts = [sum(len(members[name]) for name, own in known.items() if own == risk) for risk in distinct]
        found = equilibria.asymmetric_equilibrium(model, distinct, counts)
    except (ValueError, CoterieError) as error:  # the message says what is not solved
        return None, str(error)
    if found.residual > MAX_RESIDUAL:
        return None, f"deviating from the bid functions found gains {found.residual:.2g}"
    group_of = {bidder: name for name, own in members.items() for bidder in own}
    return [found.bid_functions[distinct.index(known[group_of[bidder]])] for bidder in bidders], None


# Learned bidders -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupMetrics:
    """Metrics of a group, averaged over its bidders; None where not known."""

    l2_distance: float | None  # to the equilibrium bids: root mean square over valuations
    weighted_l2_distance: float | None  # the same, weighted by the win probability in equilibrium
    best_response_gap: float | None  # largest |bid − best response| over valuations
    weighted_best_response_gap: float | None  # largest |bid − best response| × win probability of the best response
    utility_loss: float | None  # relative utility loss against the equilibrium bid, rivals in equilibrium
    regret: float | None  # relative utility loss against the best response, rivals as learned
    payoff: float | None  # expected payoff of an auction, in money
    utility: float | None  # expected utility of an auction, under its own risk preference


METRICS = {  # fields of GroupMetrics -> rows of the report's table
    "l2_distance": "L2 distance to the equilibrium bids",
    "weighted_l2_distance": "L2, weighted by the win probability in equilibrium",
    "best_response_gap": "largest |bid − best response|",
    "weighted_best_response_gap": "largest |bid − best response| × win probability",
    "utility_loss": "utility loss against the equilibrium bid, rivals in equilibrium",
    "regret": "utility loss against the best response, rivals as learned",
    "payoff": "payoff per auction and bidder, in money",
    "utility": "utility per auction and bidder, under its own risk preference",
}
OUTCOMES = {
    "revenue": "revenue per auction",
    "efficiency": "efficiency: winner's valuation / highest valuation",
    "highest_wins": "probability that the highest valuation wins",
}


@dataclass(frozen=True)
class TableMetrics:
    """Metrics of one table of bidders."""

    bids: Array  # [A, 256] of every bidder at the benchmark's valuations
    best: Array  # [A, 256] best responses to the other bidders; NaN where not known
    groups: dict[str, GroupMetrics]
    outcome: AuctionOutcome


def learned_bid_functions(run: Run, checkpoint: str = "last") -> list[BidFunction]:
    """The greedy bid functions of all bidders in the first round, limited to the budget, and 0 below the reserve.

    The default is the last checkpoint: the best one is chosen by payoff, which is highest while all bid too little.
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
            chosen = grid_bids(action, settings.bid_levels) if settings.bid_levels else action[..., 0]
            bids[:, group.actor.group_spec.columns] = chosen
        bids = np.clip(bids, 0.0, 1.0 if settings.budget is None else min(settings.budget, 1.0))
        return np.where(bids < settings.reserve, 0.0, bids)

    all_bids = bid_function(settings.model, ask)
    return [dataclasses.replace(all_bids, bids=own) for own in all_bids.bids.T]


def evaluate_bidders(benchmark: Benchmark, bidders: Sequence[BidFunction]) -> TableMetrics:
    """Compare bidders, one bid function each, with the equilibrium and with their best responses."""
    bids = np.array([np.interp(RANKS, own.ranks, own.bids) for own in bidders])
    levels = benchmark.settings.bid_levels
    if levels and benchmark.settings.budget is None:  # where bids jump, interpolated ones lie between two of the grid
        bids = grid_bids(np.rint(bids * (levels - 1)), levels)
    bids = _apply_reserve(benchmark.model, bids)
    best, groups = np.full_like(bids, np.nan), {}
    for name, members in benchmark.members.items():
        found: list[GroupMetrics] = []
        for index in members:
            twin = next(
                (k for k, other in enumerate(members[: len(found)]) if (bids[other] == bids[index]).all()), None
            )
            if twin is None:
                numbers, best[index] = _evaluate_bidder(benchmark, benchmark.risks[name], bidders, index, bids[index])
                found.append(numbers)
            else:  # bidders with the same bids have the same rivals
                best[index] = best[members[twin]]
                found.append(found[twin])
        groups[name] = GroupMetrics(*(_mean(column) for column in zip(*map(dataclasses.astuple, found), strict=True)))
    outcome = expected_outcome(benchmark.model, bidders)
    return TableMetrics(bids, best, groups, outcome)


def _mean(column: Sequence[float | None]) -> float | None:
    known = [number for number in column if number is not None]
    return float(np.mean(known)) if len(known) == len(column) else None


def _evaluate_bidder(
    benchmark: Benchmark, risk: Prospect | None, bidders: Sequence[BidFunction], index: int, bids: Array
) -> tuple[GroupMetrics, Array]:
    """One bidder's metrics and its best responses."""
    model, values, levels = benchmark.model, benchmark.values, benchmark.settings.bid_levels
    against_learned = _win_probability(bidders, index)
    payoff = float(interim_utility(model, NEUTRAL, values, bids, against_learned).mean())
    utility = None if risk is None else float(interim_utility(model, risk, values, bids, against_learned).mean())
    near = weighted = utility_loss = largest = weighted_largest = regret = None
    best = np.full_like(bids, np.nan)
    if benchmark.equilibrium is not None and risk is not None:
        against_equilibrium = _win_probability(benchmark.equilibrium, index)
        equilibrium = _apply_reserve(model, benchmark.equilibrium_bids[index])
        near = l2_distance(bids, equilibrium)
        weighted = l2_distance(bids, equilibrium, _win_probabilities(model, against_equilibrium, equilibrium))
        own, reached = (
            interim_utility(model, risk, values, b, against_equilibrium).mean() for b in (bids, equilibrium)
        )
        utility_loss = _relative_loss(risk, float(own), float(reached))
    if utility is not None and benchmark.settings.budget is None and risk is not None:
        response = best_response(model, risk, values, against_learned, levels)
        best = _apply_reserve(model, response.bids)
        gap = np.abs(bids - best)
        largest, weighted_largest = (
            float(gap.max()),
            float((gap * _win_probabilities(model, against_learned, best)).max()),
        )
        regret = _relative_loss(risk, utility, float(response.utility.mean()))
    return GroupMetrics(near, weighted, largest, weighted_largest, utility_loss, regret, payoff, utility), best


def _win_probability(bidders: Sequence[BidFunction], index: int) -> WinProbability:
    """The win probability of one bidder against the others."""
    return win_probability_against([rival for i, rival in enumerate(bidders) if i != index])


def _apply_reserve(model: AuctionModel, bids: Array) -> Array:
    """Bids with 0 in place of those below the reserve."""
    return np.where(bids < model.reserve, 0.0, bids)


def _win_probabilities(model: AuctionModel, win_probability: WinProbability, bids: Array) -> Array:
    """Win probabilities of bids; those below the reserve never win."""
    return np.where(bids < model.reserve, 0.0, win_probability(bids))


def _relative_loss(risk: Prospect, utility: float, reached: float) -> float | None:
    """The loss relative to the attainable utility; None with a reference point, where not bidding has a utility ≠ 0."""
    return 1.0 - utility / reached if reached > 0 and risk.reference == 0 else None


# Several runs ----------------------------------------------------------------------------------------


def measure_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """All metrics of runs of one table, as JSON."""
    if len(found := group_by_table(runs)) != 1:
        raise CoterieError(
            f"runs: expected runs of one table, got {len(found)} different tables; measure each by itself"
        )
    return summarise(*evaluate_runs(found[0]))


def group_by_table(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by table: runs of one group differ only in seeds and execution settings."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        plain = to_dict(run.config())
        for group in plain["groups"].values():
            group["policy"].pop("run", None)  # a policy from an earlier run may differ between seeds
        length = plain["train"]["total_steps"]
        found.setdefault(json.dumps([plain["world"], plain["groups"], length]), []).append(run)
    return list(found.values())


def benchmark_of(config: Config) -> Benchmark:
    """The benchmark of a config."""
    group_specs = build.build_group_specs(config, Auction(config.world.settings, 1))
    members = {name: tuple(map(int, group_spec.columns)) for name, group_spec in group_specs.items()}
    preferences = {name: _preference(group, group_specs[name]) for name, group in config.groups.items()}
    risks = {name: risk_of(preference) for name, preference in preferences.items()}
    labels = {name: preference_label(preference) for name, preference in preferences.items()}
    return dataclasses.replace(make_benchmark(config.world.settings, members, risks), labels=labels)


def _preference(group: GroupConfig, group_spec: GroupSpec) -> Part:
    """A group's preference; a policy of an earlier run that no longer learns keeps the one it learned with."""
    if group.learner is not None or not isinstance(group.policy, SeatedRun) or group.preference.name != "individual":
        return group.preference
    earlier = Run.open(group.policy.run).config()
    return earlier.groups[build.source_group(group.policy, group_spec, earlier)].preference


def evaluate_runs(runs: Sequence[Run]) -> tuple[Benchmark, list[TableMetrics]]:
    """The benchmark of runs of one table, and the metrics of each run."""
    benchmark = benchmark_of(runs[0].config())
    return benchmark, [evaluate_bidders(benchmark, learned_bid_functions(run)) for run in runs]


def estimate(numbers: Sequence[float | None]) -> Estimate | None:
    """The mean with its interval; None if a number is not known."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    return statistics.stratified_bootstrap([np.array(known)], statistics.mean, statistics.bootstrap_stream())


def summarise(benchmark: Benchmark, tables: Sequence[TableMetrics]) -> dict[str, Any]:
    """Means and intervals over runs, and the numbers of the equilibrium, as JSON."""
    equilibrium = None if benchmark.equilibrium is None else evaluate_bidders(benchmark, benchmark.equilibrium)
    at = [round(255 * share / 10) for share in range(11)]
    groups: dict[str, Any] = {}
    for name, members in benchmark.members.items():
        rows = list(members)
        groups[name] = {
            "risk_preference": benchmark.labels[name],
            "bidders": len(members),
            "learned": {m: _estimate_as_json([getattr(one.groups[name], m) for one in tables]) for m in METRICS},
            "equilibrium": None
            if equilibrium is None
            else {m: getattr(equilibrium.groups[name], m) for m in ("payoff", "utility")},
            "bids": np.mean([one.bids[rows].mean(axis=0) for one in tables], axis=0)[at].round(5).tolist(),
            "equilibrium_bids": None if equilibrium is None else equilibrium.bids[rows[0]][at].round(5).tolist(),
        }
    return {
        "runs": len(tables),
        "world": dataclasses.asdict(benchmark.settings),
        "remarks": list(benchmark.remarks),
        "valuations": benchmark.values[at].round(5).tolist(),
        "groups": groups,
        "auction": {
            "learned": {m: _estimate_as_json([_outcome(one, m) for one in tables]) for m in OUTCOMES},
            "equilibrium": None if equilibrium is None else equilibrium.outcome._asdict(),
            "neutral": risk_neutral_outcome(benchmark),
        },
    }


def _estimate_as_json(numbers: Sequence[float | None]) -> dict[str, Any] | None:
    found = estimate(numbers)
    return None if found is None else found.to_dict() | {"seeds": list(numbers)}


def _outcome(one: TableMetrics, name: str) -> float | None:
    """A number of the outcome; `highest_wins` is known for non-decreasing bid functions only."""
    rising = (np.maximum.accumulate(one.bids, axis=1) - one.bids).max() <= MAX_DIP
    return float(getattr(one.outcome, name)) if rising or name != "highest_wins" else None


def risk_neutral_outcome(benchmark: Benchmark) -> dict[str, float] | None:
    """Outcome and payoff per bidder of the equilibrium of risk-neutral bidders."""
    if benchmark.settings.budget is not None:
        return None
    model = benchmark.model
    bidders = [equilibria.symmetric_equilibrium(model)] * benchmark.settings.num_bidders
    bids = _apply_reserve(model, np.interp(RANKS, bidders[0].ranks, bidders[0].bids))
    payoff = float(interim_utility(model, NEUTRAL, benchmark.values, bids, _win_probability(bidders, 0)).mean())
    return expected_outcome(model, bidders)._asdict() | {"payoff": payoff}
