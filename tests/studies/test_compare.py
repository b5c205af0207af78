"""Comparisons in numbers: scores on one scale, intervals, who beats whom, how soon."""

import json

import numpy as np
import pytest

from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies import statistics
from coterie.studies.compare import compare, show
from coterie.studies.statistics import Reaching, interquartile_mean
from helpers.compare import FAST, SLOW, compared, fabricate, labels
from helpers.run import train, written


def test_what_is_known_about_a_variant(sweep):
    fast, slow = compared(sweep, threshold=5.0).standings
    assert (fast.aggregates["iqm"].value, slow.aggregates["iqm"].value) == (7.5, 5.5)
    assert (fast.aggregates["mean"].value, slow.aggregates["mean"].value) == (7.5, 5.0)
    scores = np.array([2.0, 5, 6, 7])
    expected = statistics.stratified_bootstrap([scores], interquartile_mean, statistics.bootstrap_stream())
    assert slow.aggregates["iqm"] == expected
    assert expected.low < 5.5 < expected.high
    assert fast.area.value == pytest.approx(np.mean([(2.5 + (5 + s) / 2) / 2 for s in (7, 8)]))
    assert fast.reaching == {"gridworld": Reaching(4, 4, 100, 100, 200)}
    assert slow.reaching == {"gridworld": Reaching(4, 3, 200, 200, 200)}


def test_who_beats_whom(sweep):
    (found,) = compared(sweep).improvement.values()
    assert found.value == pytest.approx((2.5 + 3.5 + 4 + 4) / 16)
    assert found.low < found.value < found.high <= 1


def test_the_last_policies_can_be_scored(sweep):
    assert [one.aggregates["mean"].value for one in compared(sweep, scored="last").standings] == [7.5, 1.0]


@pytest.mark.slow
def test_the_order_of_arguments_changes_nothing(sweep):
    there = show.to_dict(compared(sweep / "fast", sweep / "slow", threshold=5.0))["variants"]
    back = show.to_dict(compared(sweep / "slow", sweep / "fast", threshold=5.0))["variants"]
    assert there == back[::-1]


def test_areas_end_where_the_shortest_run_does(tmp_path):
    fabricate(tmp_path / "a", FAST, curve=(0.0, 4.0, 8.0, 8.0, 8.0))
    fabricate(tmp_path / "b", SLOW, curve=(0.0, 4.0))
    found = compared(tmp_path, threshold=8.0)
    assert found.ends == {"gridworld": 100}
    assert [one.area.value for one in found.standings] == [2.0, 2.0]
    assert [one.reaching["gridworld"].horizon for one in found.standings] == [100, 100]


def test_several_worlds_are_put_on_one_scale(tmp_path):
    for seed in (0, 1):
        small = {"score": 5.5, "curve": (1.0, 10.0), "baselines": (1.0, 10.0)}
        large = {"score": 150.0, "curve": (100.0, 120.0), "baselines": (100.0, 200.0)}
        fabricate(tmp_path / f"small{seed}", f"seed={seed}", "world.grid_size=4", **small)
        fabricate(tmp_path / f"large{seed}", f"seed={seed}", **large)
    found = compared(tmp_path, threshold=0.9)
    assert labels(found) == ["gridworld-cooperative"]
    (only,) = found.standings
    assert set(found.scales) == {"gridworld grid_size=4", "gridworld grid_size=8"}
    assert only.aggregates["iqm"].value == pytest.approx(0.5)
    assert only.aggregates["optimality_gap"].value == pytest.approx(0.5)
    assert found.references == {"random": 0.0, "expert": 1.0, "step 0": 0.0}
    text = show.as_table(found, "best")
    assert "scale of gridworld grid_size=4: random play = 0 at 1.00, expert = 1 at 10.00" in text
    assert "normalised return" in text
    assert [row["normalised"] for row in show.as_rows(found)] == pytest.approx([0.5] * 4)


@pytest.mark.slow
def test_times_to_a_threshold_are_of_one_world_each(tmp_path):
    """Watched to 100 in the small world and to 400 in the large one."""
    for rate in (FAST, SLOW):
        for seed in (0, 1):
            path, words = tmp_path / rate[-5:], (rate, f"seed={seed}")
            fabricate(path / f"small{seed}", *words, "world.grid_size=4", curve=(1, 1 + 9 * seed))
            late = 1 if rate == FAST else 10  # the slow ones are sooner in the large world
            fabricate(path / f"large{seed}", *words, curve=(1, 1, late, late, 10))
    found = compared(tmp_path, threshold=1.0)
    small, large = "gridworld grid_size=4", "gridworld grid_size=8"
    by_label = {one.variant.label.split("=")[-1]: one.reaching for one in found.standings}
    assert by_label["0.01"] == {small: Reaching(2, 1, 100, 100, 100), large: Reaching(2, 2, 400, 400, 400)}
    assert by_label["0.001"] == {small: Reaching(2, 1, 100, 100, 100), large: Reaching(2, 2, 200, 200, 400)}
    plain = {one["label"].split("=")[-1]: one for one in show.to_dict(found)["variants"]}
    assert plain["0.001"]["frames_to_threshold"][large] == {
        **{"runs": 2, "reached": 2, "median": 200, "restricted_mean": 200, "horizon": 400},
    }
    text = show.as_table(found, "best").replace("\n   ", " ")
    for world, horizon in ((small, 100), (large, 400)):
        assert f"validation score in {world} reaches 1; runs" in text
        assert f"mean: up to {horizon} steps" in text
    page = show.write_page(found, "best", tmp_path / "page.html").read_text()
    assert page.count("<table>") == 4  # scores, two worlds, pairs
    assert page.count("<td>2/2<td>200<td>200") == 1


def test_every_variant_has_its_own_runs(tmp_path):
    """Two of one learner and one of another: what tells the two apart is a setting of the part that differs."""
    for name, words in {
        "a": (FAST,),
        "b": (SLOW,),
        "c": ("groups.team.learner.name=dqn", "train.rollout_steps=4"),
    }.items():
        fabricate(tmp_path / name, *words)
    plain = show.to_dict(compared(tmp_path))["variants"]
    assert len({one["label"] for one in plain}) == 3
    assert [[run["run"] for run in one["runs"]] for one in plain] == [[str(tmp_path / name)] for name in "abc"]


def test_without_a_expert_the_best_variant_is_the_reference(tmp_path):
    for group_spec, (rate, score) in enumerate(((FAST, 5.0), (SLOW, 3.0))):
        for size in (4, 5):
            path = tmp_path / f"{group_spec}-{size}"
            fabricate(path, rate, f"world.grid_size={size}", score=score * size, baselines=(0.0,))
    found = compared(tmp_path)
    assert [one.aggregates["mean"].value for one in found.standings] == pytest.approx([1.0, 0.6])
    assert {scale.source for scale in found.scales.values()} == {"best variant"}
    assert "expert" not in found.references
    fabricate(tmp_path / "bad", FAST, "seed=1", "world.grid_size=4", score=-90.0, baselines=(50.0,))
    with pytest.raises(CoterieError, match=r"grid_size=4.*not better than random"):
        compared(tmp_path)


def test_the_score_is_of_those_who_learn_or_of_one_group(tmp_path):
    duel = """\
world: {name: tictactoe}
groups: {cross: {agents: player_0, learner: {name: ppo}}, ring: {agents: player_1, policy: {name: random}}}
"""
    run = fabricate(tmp_path / "run", experiment=written(tmp_path / "duel.yaml", duel))
    both = duel.replace("policy: {name: random}", "learner: {name: ppo}")
    other = fabricate(tmp_path / "other", experiment=written(tmp_path / "both.yaml", both))
    for path, group, expected in (
        *((run.path, None, 8.0), (run.path, "cross", 8.0), (run.path, "ring", 9.0), (other.path, None, 8.5)),
    ):
        (only,) = compared(path, group=group, threshold=expected).standings
        assert only.aggregates["mean"].value == expected
        assert only.reaching["tictactoe"].median == 200  # its curve is of the same groups
        assert only.aggregates["mean"].low is None  # one run says nothing about others
    with pytest.raises(CoterieError, match="has no group 'rings'; there are cross, ring"):
        compared(run.path, group="rings")


def test_curves_against_steps_and_seconds(sweep):
    found = compared(sweep)
    points, estimate = compare.curves(found.standings[0].variant, found.scales, "steps")
    assert points.tolist() == [0, 100, 200]
    assert estimate.value.tolist() == [0, 5, 7.5]
    assert estimate.low[2] < 7.5 < estimate.high[2]
    seconds, same = compare.curves(found.standings[0].variant, found.scales, "wall")
    assert seconds.tolist() == [0, 1, 2]
    assert same.value.tolist() == [0, 5, 7.5]


def test_bands_of_curves_draw_runs_within_their_worlds(tmp_path):
    """Runs of a world are alike, so that which of them is drawn changes nothing."""
    for seed in (0, 1):
        for size, height in ((4, 1.0), (5, 10.0)):
            fabricate(tmp_path / f"{size}-{seed}", f"seed={seed}", f"world.grid_size={size}", curve=(1.0, height))
    found = compared(tmp_path)
    _, estimate = compare.curves(found.standings[0].variant, found.scales, "steps")
    assert estimate.value.tolist() == [0.0, 0.5]
    assert (estimate.low.tolist(), estimate.high.tolist()) == ([0.0, 0.5], [0.0, 0.5])


@pytest.mark.slow
def test_a_sweep_as_training_leaves_it(coterie_, tmp_path):
    for seed in (0, 1):
        for hidden in (4, 8):
            words = (f"seed={seed}", f"groups.team.policy.hidden=[{hidden}]", "train.total_steps=64")
            train(tmp_path / "sweep" / f"{seed}-{hidden}", *words)
    code, out, _ = coterie_("compare", tmp_path / "sweep", "--json")
    plain = json.loads(out)
    assert code == 0
    assert [one["label"].split()[1] for one in plain["variants"]] == ["policy.hidden=[4]", "policy.hidden=[8]"]
    for one in plain["variants"]:
        summaries = [Run.open(run["run"]).summary() for run in one["runs"]]
        expected = [s["evaluation"]["groups"]["team"]["return_mean"] for s in summaries]
        assert one["mean"]["value"] == pytest.approx(np.mean(expected))
        assert one["curves"]["steps"]["at"] == [0, 64]
