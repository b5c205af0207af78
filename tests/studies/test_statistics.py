"""Statistics over runs, against values worked out by hand and against rliable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from coterie.core.types import CoterieError
from coterie.studies import statistics
from coterie.studies.statistics import (
    align,
    area_under_curve,
    bootstrap_stream,
    frames_to_threshold,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
    summarise_reaching,
    survival,
)
from helpers.small_worlds import generator

score = st.floats(-1e3, 1e3)
runs = st.lists(score, min_size=1, max_size=12).map(np.array)


def example(count=5, tasks=3, shift=0.0):
    """Runs by tasks, each task on a scale of its own."""
    return generator(7).normal(shift + np.arange(tasks), 1.0, (count, tasks))


# Aggregates ---------------------------------------------------------------------------------------------


def test_aggregates_by_hand():
    one = [np.array([1.0, 2, 3, 4, 100])]
    assert interquartile_mean(one) == 3.0  # 1 and 100 are cut off
    assert statistics.mean(one) == 22.0
    assert interquartile_mean([np.array([1.0, 2, 6])]) == 3.0  # of three none is cut off
    two = [np.array([0.0, 1.0]), np.array([3.0, 3.0, 3.0]), np.array([10.0])]
    assert statistics.mean(two) == pytest.approx((0.5 + 3 + 10) / 3)
    assert statistics.median(two) == 3.0
    assert interquartile_mean(two) == pytest.approx((1 + 3 + 3 + 3) / 4)
    assert statistics.optimality_gap([np.array([0.5, 1.5]), np.array([1.0])]) == pytest.approx(0.125)
    assert statistics.optimality_gap(one, target=2.0) == pytest.approx(2 - 9 / 5)


@pytest.mark.slow
@given(st.lists(runs, min_size=1, max_size=4))
def test_the_interquartile_mean_is_scipys_trimmed_mean(scores):
    assert interquartile_mean(scores) == pytest.approx(trim_mean(np.concatenate(scores), 0.25), abs=1e-9)


@given(runs, score, st.floats(0.1, 10))
def test_the_interquartile_mean_moves_with_its_scores(scores, shift, factor):
    moved = interquartile_mean([factor * scores + shift])
    assert moved == pytest.approx(factor * interquartile_mean([scores]) + shift, abs=1e-6)
    assert scores.min() - 1e-9 <= interquartile_mean([scores]) <= scores.max() + 1e-9


@pytest.mark.parametrize("scores", [[], [np.array([])], [np.array([1.0]), np.array([])], [np.array(1.0)]])
def test_no_runs_are_refused(scores):
    with pytest.raises(CoterieError, match="at least one run of every task"):
        interquartile_mean(scores)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_refused_even_where_it_would_be_cut_off(bad):
    scores = [np.array([1.0, 2, 3, 4, bad])]
    for statistic in (interquartile_mean, statistics.mean, statistics.median, statistics.optimality_gap):
        with pytest.raises(CoterieError, match="finite"):
            statistic(scores)
    with pytest.raises(CoterieError, match="finite"):
        probability_of_improvement(scores, scores, generator())
    with pytest.raises(CoterieError, match="finite"):
        performance_profile(scores, np.array([0.0]), generator())


# Intervals ----------------------------------------------------------------------------------------------


def test_the_bootstrap_of_two_runs_by_hand():
    """Means of two draws from {0, 1}: 0, ½ and 1 with ¼, ½ and ¼."""
    scores = [np.array([0.0, 1.0])]
    found = stratified_bootstrap(scores, statistics.mean, generator())
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    middle = stratified_bootstrap(scores, statistics.mean, generator(), level=0.4)
    assert (middle.low, middle.high) == (0.5, 0.5)


def test_runs_are_drawn_within_their_task():
    """Tasks without spread give an interval without width, however far apart they are."""
    found = stratified_bootstrap([np.zeros(4), np.full(3, 100.0)], statistics.mean, generator())
    assert (found.low, found.value, found.high) == (50, 50, 50)


def test_the_bootstrap_agrees_with_the_normal_interval():
    scores = generator(3).normal(0, 2.0, 400)
    found = stratified_bootstrap([scores], statistics.mean, generator())
    half = 1.96 * scores.std() / np.sqrt(len(scores))
    assert found.low == pytest.approx(scores.mean() - half, abs=0.03)
    assert found.high == pytest.approx(scores.mean() + half, abs=0.03)


def test_the_same_stream_gives_the_same_interval():
    scores = list(example().T)
    one, other = (stratified_bootstrap(scores, interquartile_mean, bootstrap_stream()) for _ in range(2))
    assert one == other
    assert stratified_bootstrap(scores, interquartile_mean, generator(1)) != one


def test_one_run_has_no_interval():
    lone = [np.array([1.0, 2.0]), np.array([3.0])]
    assert stratified_bootstrap(lone, statistics.mean, generator()).to_dict() == {"value": 2.25, "interval": None}
    assert probability_of_improvement(lone, lone, generator()).to_dict() == {"value": 0.5, "interval": None}
    assert performance_profile(lone, np.array([1.5]), generator()).to_dict() == {"value": [0.75], "interval": None}


def test_a_run_is_drawn_at_all_points_of_its_curve():
    curves = example(6, 3).T  # [T, R]
    found = stratified_bootstrap([curves], interquartile_mean, bootstrap_stream())
    for point, values in enumerate(curves):
        alone = stratified_bootstrap([values], interquartile_mean, bootstrap_stream())
        assert (found.value[point], found.low[point], found.high[point]) == (alone.value, alone.low, alone.high)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(score, min_size=2, max_size=6).map(np.array), min_size=1, max_size=3))
def test_intervals_stay_within_the_scores(scores):
    found = stratified_bootstrap(scores, interquartile_mean, generator(), repetitions=100)
    pooled = np.concatenate(scores)
    assert pooled.min() - 1e-9 <= found.low <= found.high <= pooled.max() + 1e-9


def failing(random, runs):
    """Scores near 1; one run in five fails."""
    return np.where(random.random(runs) < 0.2, 0.0, 1.0) + 0.1 * random.normal(size=runs)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [3, 5, 20])
@pytest.mark.parametrize("name", ["mean", "IQM"])
def test_intervals_cover_as_often_as_is_said(name, runs):
    random, statistic = np.random.default_rng(runs), {"mean": statistics.mean, "IQM": interquartile_mean}[name]
    middle = float(interquartile_mean([failing(random, 1_000_000)]))
    cases = {"normal": (lambda r, n: r.normal(size=n), 0.0), "failing": (failing, 0.8 if name == "mean" else middle)}
    for case, (draw, truth) in cases.items():
        found = [stratified_bootstrap([draw(random, runs)], statistic, random, 400) for _ in range(500)]
        held = np.mean([one.low <= truth <= one.high for one in found])
        assert held == pytest.approx(getattr(statistics.coverage(name, runs), case), abs=0.06), case


def test_the_note_on_coverage_takes_the_nearest_number_below():
    assert statistics.coverage("mean", 7) == statistics.coverage("mean", 5)
    assert statistics.coverage_note("mean", 7) == (
        "with 7 runs a 95% interval holds the true mean in about 84% of cases, 65% where one run in five fails"
    )


# Who beats whom -----------------------------------------------------------------------------------------


def test_the_probability_of_improvement_by_hand():
    one, other = [np.array([1.0, 2.0, 3.0])], [np.array([2.0, 0.0])]
    assert probability_of_improvement(one, other, generator()).value == pytest.approx((1 + 1.5 + 2) / 6)
    several = probability_of_improvement([*one, np.zeros(2)], [*other, np.ones(5)], generator())
    assert several.value == pytest.approx((4.5 / 6 + 0) / 2)
    with pytest.raises(CoterieError, match="same tasks, got 1 and 2"):
        probability_of_improvement(one, [*other, *other], generator())


def test_the_interval_of_an_improvement_by_hand():
    """Two runs against one score, drawn twice: U / 4 is 0, ½ or 1 with ¼, ½ and ¼."""
    found = probability_of_improvement([np.array([0.0, 2.0])], [np.array([1.0, 1.0])], generator())
    assert (found.low, found.value, found.high) == (0.0, 0.5, 1.0)
    middle = probability_of_improvement([np.array([0.0, 2.0])], [np.ones(2)], generator(), level=0.4)
    assert (middle.low, middle.high) == (0.5, 0.5)


@pytest.mark.slow
@given(st.lists(st.tuples(runs, runs), min_size=1, max_size=3))
def test_improvement_and_decline_add_up_to_one(pairs):
    one, other = [x for x, _ in pairs], [y for _, y in pairs]
    there = probability_of_improvement(one, other, generator(), repetitions=10).value
    back = probability_of_improvement(other, one, generator(), repetitions=10).value
    assert there + back == pytest.approx(1)


def test_profiles_by_hand():
    found = performance_profile(
        [np.array([1.0, 2.0]), np.array([2.0, 3.0, 4.0])], np.array([0.0, 1, 2, 4]), generator()
    )
    assert found.value == pytest.approx([1, (0.5 + 1) / 2, (0 + 2 / 3) / 2, 0])  # above, not at, a threshold
    assert (np.diff(found.low) <= 0).all()
    assert (np.diff(found.high) <= 0).all()
    assert (found.low[0], found.high[-1]) == (1, 0)


# The same by rliable ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_values_equal_rliables():
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed: pip install -e '.[dev]'")
    library = pytest.importorskip("rliable.library")
    one, other = example(), example(7, shift=0.5)
    left, right = list(one.T), list(other.T)
    assert interquartile_mean(left) == pytest.approx(metrics.aggregate_iqm(one))
    assert statistics.mean(left) == pytest.approx(metrics.aggregate_mean(one))
    assert statistics.median(left) == pytest.approx(metrics.aggregate_median(one))
    assert statistics.optimality_gap(left) == pytest.approx(metrics.aggregate_optimality_gap(one))
    improved = probability_of_improvement(right, left, generator()).value
    assert improved == pytest.approx(metrics.probability_of_improvement(other, one))
    taus = np.linspace(-2, 4, 9)
    profile = performance_profile(left, taus, generator(), repetitions=10).value
    assert profile == pytest.approx(library.score_distributions(one, taus))


@pytest.mark.slow
def test_intervals_equal_rliables():
    """Both draw at random, so bounds agree but for the noise of some thousand resamples."""
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed: pip install -e '.[dev]'")
    library = pytest.importorskip("rliable.library")
    one, other = example(), example(7, shift=0.5)
    state = np.random.get_state()  # noqa: NPY002  # what rliable draws from
    np.random.seed(0)  # noqa: NPY002
    try:
        (_, theirs) = library.get_interval_estimates(
            {"one": one}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=4_000
        )
        (_, pairs) = library.get_interval_estimates(
            {"pair": [other, one]}, metrics.probability_of_improvement, reps=400
        )
        (_, bands) = library.create_performance_profile({"one": one}, np.array([0.0, 1.0, 2.0]), reps=400)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    ours = stratified_bootstrap(list(one.T), interquartile_mean, generator(), repetitions=20_000)
    assert [ours.low, ours.high] == pytest.approx(theirs["one"][:, 0], abs=0.03)
    improved = probability_of_improvement(list(other.T), list(one.T), generator())
    assert [improved.low, improved.high] == pytest.approx(pairs["pair"][:, 0], abs=0.03)
    profile = performance_profile(list(one.T), np.array([0.0, 1.0, 2.0]), generator(), repetitions=4_000)
    assert np.stack([profile.low, profile.high]) == pytest.approx(bands["one"], abs=0.07)  # in steps of 1/15


# Curves -------------------------------------------------------------------------------------------------


def test_areas_by_hand():
    steps, values = np.array([0.0, 10, 40]), np.array([0.0, 2, 2])
    assert area_under_curve(steps, values) == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert area_under_curve(steps, values, end=10) == 1.0
    assert area_under_curve(steps, values, end=5) == 0.5
    assert area_under_curve(steps, values, end=100) == area_under_curve(steps, values)
    assert area_under_curve(steps, values, end=0) == 0.0
    assert area_under_curve(np.array([7.0]), np.array([3.0])) == 3.0


@given(st.lists(score, min_size=2, max_size=8), st.floats(0.1, 1e4), score)
def test_an_area_is_in_units_of_return(values, stretch, shift):
    steps = np.arange(len(values), dtype=float)
    area = area_under_curve(steps, np.array(values))
    assert area_under_curve(steps * stretch, np.array(values)) == pytest.approx(area, abs=1e-6)
    assert area_under_curve(steps, np.array(values) + shift) == pytest.approx(area + shift, abs=1e-6)
    assert min(values) - 1e-9 <= area <= max(values) + 1e-9


def test_the_first_evaluation_that_reaches_a_threshold_counts():
    steps, values = np.array([0, 10, 20, 30]), np.array([0.0, 5.0, 3.0, 9.0])
    assert frames_to_threshold(steps, values, 4.0) == 10
    assert frames_to_threshold(steps, values, 5.0) == 10
    assert frames_to_threshold(steps, values, 5.1) == 30
    assert frames_to_threshold(steps, values, -1.0) == 0
    assert frames_to_threshold(steps, values, 9.1) is None


@pytest.mark.parametrize(
    ("steps", "values", "reason"),
    [
        ([], [], "at least one"),
        ([0, 1], [1.0], "one value for each"),
        ([0, 0], [1.0, 2.0], "steps that grow"),
        ([0, 1], [1.0, np.nan], "finite"),
    ],
)
def test_what_is_no_curve_is_refused(steps, values, reason):
    for function in (area_under_curve, lambda x, y: frames_to_threshold(x, y, 0.0)):
        with pytest.raises(CoterieError, match=reason):
            function(np.array(steps), np.array(values))


def test_curves_are_brought_to_common_points():
    points, values = align([(np.array([0.0, 2, 4]), np.array([0.0, 2, 2])), (np.array([1.0, 3]), np.array([5.0, 9]))])
    assert points.tolist() == [1, 2, 3]
    assert values.tolist() == [[1, 5], [2, 7], [2, 9]]
    line = np.arange(100.0)
    few, values = align([(line, line)], most=5)
    assert (few[0], few[-1], len(few)) == (0, 99, 5)
    assert (values[:, 0] == few).all()
    assert align([(np.array([0.0, 1]), np.zeros(2)), (np.array([5.0, 6]), np.zeros(2))])[1].shape == (0, 2)


# Times to a threshold -----------------------------------------------------------------------------------


def test_survival_by_hand():
    """Freireich et al. 1963, remission under 6-MP, the textbook example of Kaplan and Meier's estimate."""
    times = np.array([6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35])
    reached = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0], bool)
    events, share = survival(times, reached)
    assert events.tolist() == [6, 7, 10, 13, 16, 22, 23]
    assert share == pytest.approx([0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], abs=5e-4)
    found = summarise_reaching([t if r else None for t, r in zip(times, reached, strict=True)], times, 35)
    assert (found.runs, found.reached, found.median) == (21, 9, 23)


def test_runs_that_never_reached_it_are_kept():
    found = summarise_reaching([10, None, 30], [100, 100, 100], 100)
    assert (found.runs, found.reached, found.median) == (3, 2, 30)
    assert found.restricted_mean == pytest.approx((10 + 30 + 100) / 3)
    half = summarise_reaching([10, None], [100, 100], 100)
    assert (half.median, half.restricted_mean) == (10, 55)
    never = summarise_reaching([None, None], [100, 50], 80)
    assert (never.reached, never.median, never.restricted_mean) == (0, None, 80)
    early = summarise_reaching([10, 90], [100, 100], 40)
    assert early.restricted_mean == pytest.approx((10 + 40) / 2)


def test_a_run_watched_for_less_counts_for_as_long_as_it_was():
    """At 30 two are left, for the second was watched to 20 only: 2/3 · 1/2 of the runs are short of it."""
    found = summarise_reaching([None, 30, None, 10], [20, 100, 100, 100], 100)
    assert survival(np.array([20, 30, 100, 10]), np.array([0, 1, 0, 1], bool))[1] == pytest.approx([3 / 4, 3 / 8])
    assert (found.reached, found.median) == (2, 30)
    assert found.restricted_mean == pytest.approx(10 + 20 * 3 / 4 + 70 * 3 / 8)


def test_nobody_to_sum_up_is_refused():
    with pytest.raises(CoterieError, match="at least one run"):
        summarise_reaching([], [], 10)


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=12))
def test_without_early_ends_the_restricted_mean_is_the_mean(cases):
    """Everybody watched to 100: what was not reached counts as 100."""
    frames = [float(time) if reached else None for time, reached in cases]
    found = summarise_reaching(frames, [100.0] * len(frames), 100)
    assert found.restricted_mean == pytest.approx(np.mean([100.0 if f is None else f for f in frames]))
    assert found.reached == sum(reached for _, reached in cases)
