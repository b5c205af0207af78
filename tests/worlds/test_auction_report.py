"""The report section of auctions: exact numbers for known bidders, a sentence where nothing is known."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from PIL import Image

import coterie
from coterie.config.schema import load
from coterie.core.types import CoterieError, Decision
from coterie.preferences.prospect import NEUTRAL, Prospect
from coterie.runs.run import Run
from coterie.studies.auction import metrics
from coterie.studies.auction.report import report_section
from coterie.studies.report import report
from coterie.worlds.auction.best_responses import bid_function
from coterie.worlds.auction.equilibria import symmetric_equilibrium
from coterie.worlds.auction.world import AuctionSettings
from helpers.run import train, written

TABLE = """\
world: {{name: auction, {world}}}
groups: {{{groups}}}
train: {{num_envs: 4, rollout_steps: 2, total_steps: 8, evaluate_episodes: 4, video: false, tensorboard: false}}
"""
SHADE = 'policy: {name: "test_auction_report:Shade", '


@dataclass(frozen=True)
class ShadeSettings:
    share: float = 0.6
    apart: float = 0.0  # how much less each further bidder of the group bids
    levels: int = 0


class Shade:
    """Bids a share of its valuation."""

    memory_size = 0

    def __init__(self, settings: ShadeSettings, place) -> None:
        self.settings = settings

    def act(self, view):
        shares = self.settings.share - self.settings.apart * np.asarray(view.agents)
        bids = shares[:, None] * view.observation[..., :1]
        if self.settings.levels:
            return Decision(np.rint(bids[..., 0] * (self.settings.levels - 1)).astype(np.int64))
        return Decision(bids.astype(np.float32))

    def state(self):
        return {}

    def load(self, state):
        pass

    def metrics(self):
        return {}


@pytest.fixture
def played(tmp_path):
    """Runs of a table without learners, one for each seed; their own reports are left out."""

    def make(world, groups, seeds=1, name="table"):
        file = written(tmp_path / f"{name}.yaml", TABLE.format(world=world, groups=groups))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report, "write_report", lambda *a: None)
            return [train(tmp_path / f"{name}-{s}", f"seed={s}", experiment=file) for s in range(seeds)]

    return make


def learned(found, group, name):
    return found["groups"][group]["learned"][name]


# Exact numbers ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bidders", [2, 3])
def test_bidders_in_equilibrium(played, bidders):
    runs = played(f"num_bidders: {bidders}", "all: {policy: expert}", seeds=2)
    found = metrics.measure_runs(runs)
    for name in (
        "l2_distance",
        "weighted_l2_distance",
        "best_response_gap",
        "weighted_best_response_gap",
        "utility_loss",
        "regret",
    ):
        assert learned(found, "all", name)["value"] == pytest.approx(0, abs=4e-3 if "gap" in name else 1e-3), name
    assert learned(found, "all", "payoff")["value"] == pytest.approx(1 / (bidders * (bidders + 1)), abs=1e-4)
    assert learned(found, "all", "payoff")["interval"] == pytest.approx([learned(found, "all", "payoff")["value"]] * 2)
    revenue, equilibrium = (bidders - 1) / (bidders + 1), found["auction"]["equilibrium"]
    for outcome in (found["auction"]["neutral"], equilibrium):
        assert (outcome["revenue"], outcome["efficiency"]) == pytest.approx((revenue, 1), abs=1e-4)
    assert found["auction"]["neutral"]["payoff"] == pytest.approx(1 / (bidders * (bidders + 1)), abs=1e-4)
    reported = {name: one["value"] for name, one in found["auction"]["learned"].items()}
    assert reported == pytest.approx({"revenue": revenue, "efficiency": 1, "highest_wins": 1}, abs=1e-4)
    assert found["remarks"] == []


def test_a_bidder_who_shades_too_little(played):
    """Both bid 0.6 v where 0.5 v is ideal; by hand.

    L2: 0.1 √(E v²) = 0.1 / √3; weighted by the ideal's chance to win, v: 0.1 √(E v³ / E v) = 0.1 / √2. Among ideal
    rivals min(1.2 v, 1) is won, which is worth ∫ 0.4 v · 1.2 v up to 5/6 and ∫ 0.4 v above, in place of 1/6.
    The best response to 0.6 v is 0.5 v again, worth ∫ 0.5 v · (0.5 v / 0.6) = 5/36; one earns ∫ 0.4 v² = 2/15.
    """
    found = metrics.measure_runs(played("num_bidders: 2", f"all: {{{SHADE}share: 0.6}}}}"))
    expected = {
        "l2_distance": 0.1 / np.sqrt(3),
        "weighted_l2_distance": 0.1 / np.sqrt(2),
        "best_response_gap": 0.1,
        "weighted_best_response_gap": 0.1 * 5 / 6,
        "utility_loss": 1 - 6 * (0.48 * (5 / 6) ** 3 / 3 + 0.2 * (1 - (5 / 6) ** 2)),
        "regret": 1 - (2 / 15) / (5 / 36),
        "payoff": 2 / 15,
        "utility": 2 / 15,
    }
    assert {name: learned(found, "all", name)["value"] for name in expected} == pytest.approx(expected, abs=2e-3)
    assert learned(found, "all", "utility_loss")["interval"] is None  # one run says nothing of others
    assert found["auction"]["learned"]["revenue"]["value"] == pytest.approx(0.4, abs=1e-4)
    assert found["groups"]["all"]["equilibrium"]["payoff"] == pytest.approx(1 / 6, abs=1e-4)


def test_intervals_are_over_runs():
    benchmark = metrics.make_benchmark(AuctionSettings(), {"all": (0, 1)}, {"all": NEUTRAL})
    tables = [
        metrics.evaluate_bidders(benchmark, [bid_function(benchmark.model, lambda v, s=share: s * v)] * 2)
        for share in (0.5, 0.6, 0.7)
    ]
    one = learned(metrics.summarise(benchmark, tables), "all", "payoff")
    assert one["seeds"] == pytest.approx([1 / 6, 2 / 15, 0.1], abs=1e-3)
    assert one["interval"][0] < one["value"] < one["interval"][1]


@pytest.mark.slow
def test_a_mixed_table_is_held_against_its_own_equilibrium():
    """And bidders who do what it says lose nothing; each group is paid for itself."""
    risks = {"prospect": Prospect(), "neutral": NEUTRAL}
    benchmark = metrics.make_benchmark(AuctionSettings(num_bidders=3), {"prospect": (1,), "neutral": (0, 2)}, risks)
    assert not benchmark.is_symmetric
    assert benchmark.equilibrium[0] is benchmark.equilibrium[2]
    found = metrics.summarise(benchmark, [metrics.evaluate_bidders(benchmark, benchmark.equilibrium)])
    for group in risks:
        assert learned(found, group, "l2_distance")["value"] == 0
        assert abs(learned(found, group, "regret")["value"]) < 2e-3
        assert learned(found, group, "payoff")["value"] == found["groups"][group]["equilibrium"]["payoff"]
    assert found["auction"]["equilibrium"]["revenue"] == pytest.approx(0.479, abs=1e-3)
    assert found["auction"]["neutral"]["revenue"] == pytest.approx(0.5, abs=1e-3)
    assert found["auction"]["equilibrium"]["efficiency"] < 1


def test_bidders_of_a_group_who_differ_count_each(played):
    (run,) = played("num_bidders: 2", f"all: {{{SHADE}share: 0.6, apart: 0.2}}}}")
    first, second = metrics.learned_bid_functions(run)
    assert (float(first(0.5)), float(second(0.5))) == pytest.approx((0.3, 0.2))
    judged = metrics.evaluate_bidders(metrics.benchmark_of(run.config()), [first, second])
    assert judged.groups["all"].l2_distance == pytest.approx(0.1 / np.sqrt(3), rel=1e-3)  # both are 0.1 v away
    assert not np.allclose(judged.best[0], judged.best[1])


# Tastes and oracles -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bidder_seated_from_a_run_keeps_the_preference_it_learned_with(tmp_path):
    moment = ["train.total_steps=4096", "train.video=false", "train.tensorboard=false"]
    coterie.train("auction-cpt", moment, out=tmp_path / "cpt", quiet=True)
    table = """\
    world: {name: auction}
    groups:
      guests: {agents: [bidder_0], policy: {run: RUN}SAID}
      others: {agents: [bidder_1], policy: {name: expert}}
    train: {total_steps: 64, num_envs: 4, rollout_steps: 8, evaluate_episodes: 4, video: false}
    """.replace("RUN", str(tmp_path / "cpt"))
    for said, risk in (("", Prospect()), (", preference: {name: cpt, alpha: 0.5}", Prospect(alpha=0.5))):
        file = written(tmp_path / "table.yaml", table.replace("SAID", said))
        found = metrics.benchmark_of(load(str(file)))
        assert found.risks == {"guests": risk, "others": NEUTRAL}
        assert found.equilibrium is not None


def preference(text):
    return load("auction-neutral", [f"groups.bidders.preference={text}"]).groups["bidders"].preference


def test_risk_preferences():
    assert metrics.risk_of(preference("individual")) == NEUTRAL
    assert metrics.risk_of(preference("{name: cpt, scope: interim, alpha: 0.5}")) == Prospect(alpha=0.5)
    for other in ("{name: cpt, scope: episodic}", "cvar", "mean_variance", "team"):
        assert metrics.risk_of(preference(other)) is None
    assert metrics.preference_label(preference("{name: cpt, scope: episodic}")) == "cpt, episodic"
    assert metrics.preference_label(preference("cpt")).startswith(
        "prospect theory: α 0.88, β 0.88, λ 2.25, γ 0.61 and 0.69"
    )


def benchmark(settings, risk=NEUTRAL, other=NEUTRAL):
    return metrics.make_benchmark(AuctionSettings(**settings), {"a": (0,), "b": (1,)}, {"a": risk, "b": other})


@pytest.mark.parametrize(
    ("settings", "risks", "why"),
    [
        ({"budget": 0.3}, (NEUTRAL, NEUTRAL), "budget"),
        ({}, (None, NEUTRAL), "no equilibrium is known for the preference of 'a'"),
        ({"rounds": 2}, (Prospect(), Prospect()), "no equilibrium is known for the preference of 'a' and 'b'"),
        ({"rule": "all_pay"}, (Prospect(), Prospect()), "all_pay"),
        ({"rule": "all_pay"}, (Prospect(), NEUTRAL), "first_price only, got all_pay"),
        ({}, (Prospect(reference=0.1), Prospect(reference=0.1)), "reference 0, got 0.1"),
    ],
)
def test_tables_without_an_oracle_say_why(settings, risks, why):
    found = benchmark(settings, *risks)
    assert found.equilibrium is None
    assert found.remarks[-1].startswith("The equilibrium of this table is not known: ")
    assert why in found.remarks[-1]
    judged = metrics.evaluate_bidders(found, [bid_function(found.model, lambda v: v / 2)] * 2)
    assert judged.groups["b"].l2_distance is None
    assert judged.groups["b"].payoff is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "second_price"},
        {"rule": "all_pay"},
        {"reserve": 0.3},
        {"rounds": 3},
        {"rule": "all_pay", "reserve": 0.2},
        {"rule": "second_price", "reserve": 0.3},
    ],
)
def test_other_rules_have_their_own_oracle(settings):
    found = benchmark(settings)
    judged = metrics.evaluate_bidders(found, [symmetric_equilibrium(found.model)] * 2)
    for name in ("l2_distance", "utility_loss"):
        assert getattr(judged.groups["a"], name) == pytest.approx(0, abs=1e-6)
    assert abs(judged.groups["a"].regret) < 1e-3


def test_what_lies_below_the_reserve_has_no_weight():
    found = benchmark({"reserve": 0.5})
    equilibrium = symmetric_equilibrium(found.model)
    off = replace(equilibrium, bids=np.where(equilibrium.bids > 0, equilibrium.bids + 0.02, 0.0))
    numbers = metrics.evaluate_bidders(found, [off] * 2).groups["a"]
    assert numbers.weighted_l2_distance == pytest.approx(0.02, rel=0.02)


def test_no_share_is_reported_where_losing_has_a_value_other_than_0():
    numbers = metrics.evaluate_bidders(
        benchmark({}, Prospect(reference=0.1), NEUTRAL), [symmetric_equilibrium(benchmark({}).model)] * 2
    ).groups
    assert numbers["a"].regret is None
    assert numbers["b"].regret is not None


def test_at_second_prices_risk_preferences_change_nothing():
    found = benchmark({"rule": "second_price"}, Prospect(), NEUTRAL)
    assert found.is_symmetric
    assert metrics.evaluate_bidders(found, found.equilibrium).groups["a"].regret == pytest.approx(0, abs=1e-6)


def test_bids_on_a_grid_below_a_reserve_and_beyond_a_budget(played):
    (grid,) = played("bid_levels: 11", f"all: {{{SHADE}share: 0.5, levels: 11}}}}", name="grid")
    own = metrics.learned_bid_functions(grid)[0]
    assert set(np.unique(own.bids).round(6)) == {0, 0.1, 0.2, 0.3, 0.4, 0.5}
    found = metrics.measure_runs([grid])
    assert "a grid 0.1 apart" in found["remarks"][0]
    assert learned(found, "all", "l2_distance")["value"] < 0.05
    (limited,) = played("reserve: 0.1, budget: 0.3", f"all: {{{SHADE}share: 0.5}}}}", name="limited")
    own = metrics.learned_bid_functions(limited)[0]
    assert own(np.array([0.1, 0.5, 0.9])) == pytest.approx([0.0, 0.25, 0.3], abs=1e-3)
    assert learned(metrics.measure_runs([limited]), "all", "regret") is None


def test_the_equilibrium_of_a_grid_leaves_no_regret():
    """Valuations at which two bidders with eleven bids go on to the next, found by iterating soft best responses."""
    found, steps = benchmark({"bid_levels": 11}, NEUTRAL, NEUTRAL), np.array([0.1467, 0.3163, 0.5432, 0.6683])
    bidder = bid_function(found.model, lambda values: np.searchsorted(steps, values) / 10)
    assert metrics.evaluate_bidders(found, [bidder] * 2).groups["a"].regret == pytest.approx(0, abs=2e-3)
    low = bid_function(found.model, lambda values: np.searchsorted(steps[:2], values) / 10)
    assert metrics.evaluate_bidders(found, [low] * 2).groups["a"].regret > 0.1


def test_a_falling_curve_has_no_share_of_highest_winners():
    found = benchmark({})
    judged = metrics.evaluate_bidders(found, [bid_function(found.model, lambda v: (1 - v) / 2)] * 2)
    reported = metrics.summarise(found, [judged])["auction"]["learned"]
    assert reported["highest_wins"] is None
    assert reported["efficiency"]["value"] == pytest.approx(0.5, abs=1e-2)  # the lower of two wins: 1/3 in place of 2/3


# The page -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_chapter_of_a_page(played, tmp_path, coterie_, drawing):
    runs = played(
        "num_bidders: 2",
        f"one: {{agents: bidder_0, policy: expert}}, two: {{agents: bidder_1, {SHADE}share: 0.6}}}}",
        seeds=2,
    )
    path, figure, numbers = tmp_path / "page.html", tmp_path / "figure.png", tmp_path / "deep" / "numbers.json"
    words = ["--out", path, "--figure", figure, "--numbers", numbers]
    assert coterie_("report", *(run.path for run in runs), *words)[0] == 0
    text = path.read_text()
    assert "<h2>Bids</h2>" in text
    assert "<th>group<th>one<th>two" in text
    assert "<td>risk preference<td>risk-neutral<td>risk-neutral" in text
    assert "The equilibrium is symmetric" in text
    assert re.search(r"L2 distance to the equilibrium bids<td>0.0000 \[[^]]+\]<td>0.0577 \[0.0577, 0.0577\]", text)
    assert "<td>revenue per auction<td>0.36" in text
    assert "<td>— in equilibrium, all risk-neutral<td>0.1667<td>0.1667" in text
    assert text.count("data:image/png") > 1  # curves and bids
    assert Image.open(tmp_path / "figure-bids.png").size[0] > 500
    (reported,) = json.loads(numbers.read_text())["table"]["tables"]
    assert reported["groups"]["two"]["learned"]["l2_distance"]["value"] == pytest.approx(0.0577, abs=1e-3)


@pytest.mark.slow
def test_what_is_drawn(played, monkeypatch, drawing):
    from matplotlib.figure import Figure

    from coterie.studies.auction.report import draw_bids

    runs = played("num_bidders: 2", f"all: {{{SHADE}share: 0.6}}}}", seeds=2)
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    draw_bids([metrics.evaluate_runs(runs)])
    bids, shares = drawn[0].axes[:2]
    assert bids.get_legend_handles_labels()[1] == ["all, learned", "all, best response", "equilibrium"]
    assert (bids.get_xlabel(), bids.get_ylabel(), shares.get_ylabel()) == ("valuation", "bid", "bid / valuation")
    assert bids.get_title("left") == "2 bidders, first price, uniform, 2 runs"
    assert shares.lines[0].get_ydata() == pytest.approx(0.6)
    assert shares.lines[-1].get_ydata() == pytest.approx(0.5)
    assert shares.lines[0].get_xdata()[0] >= 0.099
    assert len(bids.collections) == 1  # the band


@pytest.mark.slow
def test_sets_of_runs_are_shown_apart(played, tmp_path, drawing):
    two = played("num_bidders: 2", "all: {policy: expert}", name="two")
    three = played("num_bidders: 3, rule: all_pay, rounds: 2", "all: {policy: expert}", name="three")
    config = load(str(tmp_path / "three.yaml"), ["experiment=two"])
    three[0].write_config(config)
    with pytest.raises(CoterieError, match=r"runs: .* 2 different tables"):
        metrics.measure_runs([*two, *three])
    text = "".join(report_section([*two, *three]).parts)
    assert "<h3>2 bidders, first price, uniform</h3>" in text
    assert "<h3>3 bidders, all pay, uniform, 2 rounds</h3>" in text
    assert "Bids and numbers are those of the first of 2 rounds." in text


def test_a_run_without_policies_is_left_out(tmp_path):
    run = Run.create(tmp_path / "run", load("auction-neutral"))
    run.metrics_file.write_text(json.dumps({"env_steps": 1, "wall_s": 1}) + "\n")
    assert "run has no policies yet" in report.write_report([run], tmp_path / "page.html").read_text()


def test_other_worlds_have_no_chapter(tmp_path):
    run = Run.create(tmp_path / "run", load("gridworld-cooperative"))
    run.metrics_file.write_text(json.dumps({"env_steps": 1, "wall_s": 1}) + "\n")
    page = tmp_path / "page.html"
    assert "<h2>Bids</h2>" not in report.write_report([run], page, tmp_path / "figure.png").read_text()
    assert [file.name for file in tmp_path.glob("*.png")] == ["figure.png"]
    with pytest.raises(CoterieError, match=r"no numbers of their own, and no run has an exploit.json; scores are in"):
        report.write_report([run], page, numbers=tmp_path / "numbers.json")


@pytest.mark.slow
def test_damaged_summaries_are_named(tmp_path):
    run = Run.create(tmp_path / "run", load("gridworld-cooperative"))
    run.metrics_file.write_text(json.dumps({"env_steps": 1, "wall_s": 1}) + "\n")
    score = {"return_mean": 1.0, "return_ci95": [0.0, 1.0], "length_mean": 3.0}
    result = {"groups": {"team": score}, "success_rate": None}
    whole = {"episodes": 4, "seed": 0, "env_steps": 8, "wall_s": 1.0, "steps_per_s": 8.0, "solved": False}
    whole |= {"evaluation": result, "last": result, "step_0": result, "baselines": {"random": result}}
    run.summary_file.write_text(json.dumps(whole))
    report.write_report([run], tmp_path / "page.html")
    for missing in whole.keys() - {"seed", "steps_per_s"}:  # not shown of one run alone, and computed
        run.summary_file.write_text(json.dumps({k: v for k, v in whole.items() if k != missing}))
        with pytest.raises(CoterieError, match=f"summary.json' is damaged: it has no .*'{missing}"):
            report.write_report([run], tmp_path / "page.html")
