"""Cumulative prospect theory: by hand, by its closed forms, by sampling, and what must hold for every distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.group import RiskParameters
from coterie.preferences import prospect
from coterie.preferences.prospect import NEUTRAL, Prospect, lottery, power, utility, weight
from coterie.preferences.standard import CVaRSettings

DEFAULT = Prospect()
PARAMETERS = [
    DEFAULT,
    NEUTRAL,
    power(0.5),
    Prospect(0.7, 0.9, 3.0, 0.5, 0.8, reference=0.3),
    Prospect(1.2, 0.6, 0.5, 1.4, 2),
]


def value(parameters, outcomes, probabilities):
    return prospect.value(parameters.risk_parameters(), outcomes, probabilities)


def value_of_samples(parameters, samples):
    return prospect.value_of_samples(parameters.risk_parameters(), samples)


def influence_of_samples(parameters, samples):
    return prospect.influence_of_samples(parameters.risk_parameters(), samples)


def cvar(level):
    return RiskParameters(level=level)


def mean_variance(aversion):
    return RiskParameters(aversion=aversion)


@st.composite
def distributions(draw):
    size = draw(st.integers(1, 6))
    outcomes = draw(st.lists(st.integers(-20, 20), min_size=size, max_size=size))
    parts = np.array(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), float)
    return np.array(outcomes, float) / 10, parts / parts.sum()


# By hand ----------------------------------------------------------------------------------------------


def test_utility_by_hand():
    np.testing.assert_allclose(utility(DEFAULT, [0, 1, 100, -1, -100]), [0, 1, 100**0.88, -2.25, -2.25 * 100**0.88])
    np.testing.assert_allclose(utility(Prospect(reference=10), [10, 14, 6]), [0, 4**0.88, -2.25 * 4**0.88])


def test_weights_are_those_of_tversky_and_kahneman():
    """Small probabilities are overweighted, large ones underweighted; the numbers are those of their figure 1."""
    np.testing.assert_allclose(weight([0, 0.01, 0.1, 0.5, 0.9, 1], 0.61), [0, 0.055, 0.186, 0.421, 0.712, 1], atol=5e-4)
    np.testing.assert_allclose(weight(0.5, 0.69), 0.5**0.69 / (2 * 0.5**0.69) ** (1 / 0.69))
    np.testing.assert_array_equal(weight([0, 0.3, 1], 1.0), [0, 0.3, 1])


def test_gains_are_weighted_from_the_best_inwards():
    w = lambda p: float(weight(p, 0.61))  # noqa: E731
    expected = w(0.2) * 9**0.88 + (w(0.5) - w(0.2)) * 4**0.88 + (1 - w(0.5)) * 1
    assert value(DEFAULT, np.array([4.0, 1, 9]), np.array([0.3, 0.5, 0.2])) == pytest.approx(expected, rel=1e-12)


def test_losses_are_weighted_from_the_worst_inwards_and_apart_from_gains():
    wp, wm = float(weight(0.3, 0.61)), lambda p: float(weight(p, 0.69))
    expected = wp * 5**0.88 - 2.25 * (wm(0.1) * 8**0.88 + (wm(0.4) - wm(0.1)) * 2**0.88)
    got = value(DEFAULT, np.array([0.0, -8, 5, -2]), np.array([0.3, 0.1, 0.3, 0.3]))
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize(("better", "worse"), [(1.0, 0.5), (0.9, -0.5), (-0.2, -0.5), (0.3, 0.0), (0.1, 0.1)])
def test_a_lottery_of_two_is_the_value_of_two(parameters, better, worse):
    chance = np.linspace(0, 1, 11)
    both = value(parameters, np.broadcast_to([better, worse], (11, 2)), np.stack([chance, 1 - chance], axis=1))
    np.testing.assert_allclose(lottery(parameters, better, worse, chance), both, atol=1e-12)


def test_the_value_of_a_certain_outcome_is_its_utility():
    for parameters in PARAMETERS:
        np.testing.assert_allclose(value(parameters, np.array([0.7]), np.array([1.0])), utility(parameters, 0.7))
        np.testing.assert_allclose(
            value_of_samples(parameters, np.full(9, -0.4)), utility(parameters, -0.4), rtol=1e-12
        )


def test_equal_parameterss_for_gains_and_losses_do_not_make_it_linear():
    """Weights of gains and losses apart need not sum to 1."""
    assert value(Prospect(1, 1, 1, 0.61, 0.61), np.array([1.0, -1]), np.array([0.5, 0.5])) == pytest.approx(
        0, abs=1e-15
    )
    total = value(Prospect(1, 1, 1e-9, 0.61, 0.61), np.array([1.0, -1]), np.array([0.5, 0.5]))
    assert total == pytest.approx(0.4206, abs=1e-4)


# From samples and quantiles -----------------------------------------------------------------------------


def test_samples_are_judged_by_order_statistics():
    """Prashanth et al. (2016), word for word."""
    x = np.sort(np.random.default_rng(0).normal(size=7))
    n, total = len(x), 0.0
    for i, outcome in enumerate(x, 1):
        if outcome >= 0:
            step = weight((n + 1 - i) / n, 0.61) - weight((n - i) / n, 0.61)
            total += outcome**0.88 * step
        else:
            step = weight(i / n, 0.69) - weight((i - 1) / n, 0.69)
            total -= 2.25 * (-outcome) ** 0.88 * step
    assert value_of_samples(DEFAULT, x[[3, 1, 0, 6, 5, 2, 4]]) == pytest.approx(total, rel=1e-12)


def test_samples_come_to_the_value_of_what_they_are_drawn_from():
    outcomes, chances = np.array([-1.0, -0.2, 0.0, 0.5, 2.0]), np.array([0.1, 0.2, 0.2, 0.3, 0.2])
    random = np.random.default_rng(1)
    drawn = random.choice(outcomes, p=chances, size=(20, 20000))
    judged = value_of_samples(DEFAULT, drawn)
    assert judged.mean() == pytest.approx(float(value(DEFAULT, outcomes, chances)), abs=0.01)
    assert judged.std() < 0.03


def test_quantiles_of_a_uniform_gain():
    """∫ w(1 − x) dx, here by a fine sum, from 1,000 quantiles."""
    fine = np.linspace(0, 1, 200001)
    exact = np.trapezoid(weight(1 - fine, 0.61), fine)
    quantiles = (np.arange(1000) + 0.5) / 1000
    assert value_of_samples(Prospect(1, 1, 1), quantiles) == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize(("better", "worse"), [(2.0, 0.5), (0.9, -0.5), (-0.2, -0.5)])
def test_samples_of_a_lottery_of_two(parameters, better, worse):
    samples = np.repeat([better, worse], [30, 70])
    assert value_of_samples(parameters, samples) == pytest.approx(
        float(lottery(parameters, better, worse, 0.3)), rel=1e-12
    )


def exponential(count, random=None):
    """Quantiles in the middle of equal shares, or draws."""
    return -np.log((np.arange(count) + 0.5) / count) if random is None else random.exponential(size=(50, count))


def test_exponential_gains_and_losses():
    """Without weighting E[X^α] = Γ(1 + α); with it ∫ w(e^−z) dz, here by a fine sum; losses mirror gains."""
    z = np.linspace(0, 60, 600001)
    curved, weighted = Prospect(0.5, 0.5, 2.0, 1, 1), Prospect(1, 1, 2.0, 0.61, 0.69)
    x = exponential(100000)
    assert value_of_samples(curved, x) == pytest.approx(math.gamma(1.5), abs=1e-3)
    assert value_of_samples(curved, -x) == pytest.approx(-2 * math.gamma(1.5), abs=1e-3)
    assert value_of_samples(weighted, x) == pytest.approx(np.trapezoid(weight(np.exp(-z), 0.61), z), rel=0.01)
    assert value_of_samples(weighted, -x) == pytest.approx(-2 * np.trapezoid(weight(np.exp(-z), 0.69), z), rel=0.01)


def test_cvar_of_the_uniform_and_the_exponential():
    uniform = (np.arange(10000) + 0.5) / 10000
    for level in (0.05, 0.3, 1.0):
        tail = (1 - level) * math.log(1 - level) if level < 1 else 0.0
        assert prospect.value_of_samples(cvar(level), uniform) == pytest.approx(level / 2, abs=1e-4)
        assert prospect.value_of_samples(cvar(level), exponential(10000)) == pytest.approx(
            (tail + level) / level, abs=1e-3
        )


@pytest.mark.slow
def test_more_samples_come_nearer():
    random, exact = np.random.default_rng(3), float(value_of_samples(DEFAULT, exponential(1000000) - 1))
    apart = [
        float(np.sqrt(((value_of_samples(DEFAULT, exponential(m, random) - 1) - exact) ** 2).mean()))
        for m in (30, 300, 3000)
    ]
    assert apart[0] > 2 * apart[1] > 4 * apart[2]
    assert apart[2] < 0.05


# What a sample moves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_a_sample_moves_what_it_adds_to_the_reference(parameters):
    """φᵢ = M (V(X) − V(X with Xᵢ put at the reference)), for samples in any order, with ties."""
    rows = np.random.default_rng(4).integers(-9, 10, size=(3, 12)) / 10 + 0.05
    found = influence_of_samples(parameters, rows)
    for i in range(rows.shape[1]):
        without = rows.copy()
        without[:, i] = parameters.reference
        moved = rows.shape[1] * (value_of_samples(parameters, rows) - value_of_samples(parameters, without))
        np.testing.assert_allclose(found[:, i], moved, atol=1e-12)


def slope(judge, outcomes, direction):
    """The directional derivative of a value of equally likely outcomes with respect to their probabilities."""
    even, step = np.full(len(outcomes), 1 / len(outcomes)), 1e-6
    ahead, behind = (judge(outcomes, even + sign * step * direction) for sign in (1, -1))
    return float(ahead - behind) / (2 * step)


def directions(outcomes, distinct):
    """Probability moved among the outcomes, as much for equal ones."""
    random = np.random.default_rng(5)
    for _ in range(5):
        by_value = dict(zip(distinct.tolist(), random.normal(size=len(distinct)), strict=True))
        direction = np.array([by_value[x] for x in outcomes.tolist()])
        yield (direction - direction.mean()) / len(outcomes)


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_in_a_crowd_it_is_the_slope_of_the_value(parameters):
    distinct = np.array([-1.3, -0.4, 0.1, 0.35, 0.9, 2.0])
    outcomes = np.repeat(distinct, [300, 500, 200, 400, 550, 50])
    found = influence_of_samples(parameters, outcomes)
    for direction in directions(outcomes, distinct):
        exact = slope(lambda x, p: value(parameters, x, p), outcomes, direction)
        assert direction @ found == pytest.approx(exact, rel=0.01, abs=0.01)


@pytest.mark.parametrize("risk", [RiskParameters(level=0.33), RiskParameters(level=0.9), RiskParameters(aversion=0.7)])
def test_of_cvar_and_mean_variance_it_is_the_slope_in_a_crowd(risk):
    distinct = np.array([-1.3, -0.4, 0.1, 0.35, 0.9, 2.0])
    outcomes = np.repeat(distinct, [300, 500, 200, 400, 550, 50])
    found = prospect.influence_of_samples(risk, outcomes)
    for direction in directions(outcomes, distinct):
        exact = slope(lambda x, p: prospect.value(risk, x, p), outcomes, direction)
        assert direction @ found == pytest.approx(exact, rel=0.002, abs=0.002)


def test_cvar_counts_its_worst_exactly():
    """0.07 · 100 is a little more than 7 in floating point, and the worst 7 of 100 are meant."""
    found = prospect.influence_of_samples(cvar(0.07), np.arange(100.0))
    np.testing.assert_allclose(found[5:9], [-2 / 0.07, -1 / 0.07, 0, 0], atol=1e-9)


@pytest.mark.parametrize("level", [0.1, 0.25, 0.4, 0.7])
def test_of_cvar_a_sample_moves_what_it_takes_from_the_others(level):
    """φᵢ = M (V(X) − V(X with Xᵢ put above all others)), for samples in any order, with ties."""
    rows = np.random.default_rng(4).integers(-3, 4, size=(3, 12)) / 2
    found = prospect.influence_of_samples(cvar(level), rows)
    for i in range(rows.shape[1]):
        without = rows.copy()
        without[:, i] = 100.0
        moved = prospect.value_of_samples(cvar(level), rows) - prospect.value_of_samples(cvar(level), without)
        np.testing.assert_allclose(found[:, i], 12 * moved, atol=1e-12)


def test_without_curvature_a_sample_moves_itself():
    x = np.random.default_rng(7).normal(size=9)
    np.testing.assert_allclose(influence_of_samples(NEUTRAL, x), x, atol=1e-12)
    np.testing.assert_allclose(np.ptp(prospect.influence_of_samples(cvar(1.0), x) - x), 0, atol=1e-12)
    np.testing.assert_allclose(prospect.influence_of_samples(mean_variance(0.0), x), x)
    assert influence_of_samples(DEFAULT, np.array([4.0])) == pytest.approx(4**0.88)  # alone: its utility


def test_batches_are_judged_row_by_row():
    rows = np.random.default_rng(2).normal(size=(3, 4, 9))
    for function in (
        lambda x: influence_of_samples(DEFAULT, x),
        lambda x: prospect.influence_of_samples(cvar(0.3), x),
        lambda x: prospect.influence_of_samples(mean_variance(0.5), x),
    ):
        together = function(rows)
        assert together.shape == rows.shape
        np.testing.assert_allclose(together[1, 2], function(rows[1, 2]), rtol=1e-12)
    for function in (
        lambda x: value_of_samples(DEFAULT, x),
        lambda x: value(DEFAULT, x, np.full(x.shape, 1 / 9)),
        lambda x: prospect.value_of_samples(cvar(0.3), x),
        lambda x: prospect.value_of_samples(mean_variance(0.5), x),
    ):
        together = function(rows)
        assert together.shape == (3, 4)
        assert together[1, 2] == pytest.approx(float(function(rows[1, 2])), rel=1e-12)


# For every distribution ---------------------------------------------------------------------------------


@given(distributions())
def test_without_curvature_it_is_the_mean(lot):
    outcomes, chances = lot
    assert value(NEUTRAL, outcomes, chances) == pytest.approx(float(outcomes @ chances), abs=1e-12)
    assert value_of_samples(NEUTRAL, outcomes) == pytest.approx(outcomes.mean(), abs=1e-12)


@given(distributions(), st.sampled_from(PARAMETERS), st.integers(0, 5), st.integers(1, 10))
def test_more_is_better(lot, parameters, group_spec, gain):
    """First-order stochastic dominance."""
    outcomes, chances = lot
    more = outcomes.copy()
    more[group_spec % len(more)] += gain / 10
    assert value(parameters, more, chances) >= value(parameters, outcomes, chances) - 1e-12
    assert value_of_samples(parameters, more) >= value_of_samples(parameters, outcomes) - 1e-12
    assert prospect.value(cvar(0.4), more, chances) >= prospect.value(cvar(0.4), outcomes, chances) - 1e-12


@given(distributions(), st.sampled_from(PARAMETERS), st.integers(0, 5), st.floats(0, 1))
def test_an_outcome_in_two_parts_is_the_same_outcome(lot, parameters, group_spec, share):
    outcomes, chances = lot
    group_spec %= len(outcomes)
    parts = np.append(chances, chances[group_spec] * share)
    parts[group_spec] *= 1 - share
    halves = np.append(outcomes, outcomes[group_spec])
    assert value(parameters, halves, parts) == pytest.approx(float(value(parameters, outcomes, chances)), abs=1e-7)
    assert prospect.value(cvar(0.3), halves, parts) == pytest.approx(
        float(prospect.value(cvar(0.3), outcomes, chances)), abs=1e-9
    )


@given(distributions(), st.sampled_from(PARAMETERS), st.randoms(use_true_random=False))
def test_order_does_not_matter(lot, parameters, random):
    outcomes, chances = lot
    order = list(range(len(outcomes)))
    random.shuffle(order)
    same = float(value(parameters, outcomes, chances))
    # w is steep near 1: where chances sum to 1 − ε it moves by √ε
    assert value(parameters, outcomes[order], chances[order]) == pytest.approx(same, abs=1e-7)


@given(st.floats(0.28, 3), st.floats(0, 1), st.floats(0, 1))
def test_weighting_rises_from_0_to_1(gamma, p, q):
    low, high = weight(min(p, q), gamma), weight(max(p, q), gamma)
    assert 0 <= low <= high + 1e-12 <= 1 + 2e-12


# CVaR and mean-variance -------------------------------------------------------------------------------------------


def test_cvar_by_hand():
    outcomes, chances = np.array([3.0, -10, 0, 5]), np.array([0.4, 0.1, 0.2, 0.3])
    assert prospect.value(cvar(0.1), outcomes, chances) == -10
    assert prospect.value(cvar(0.2), outcomes, chances) == pytest.approx(-5)
    assert prospect.value(cvar(0.5), outcomes, chances) == pytest.approx((-1 + 0 + 0.2 * 3) / 0.5)
    assert prospect.value(cvar(1), outcomes, chances) == pytest.approx(outcomes @ chances)
    assert prospect.value_of_samples(cvar(0.375), np.array([4.0, 1, 2, 3])) == pytest.approx((1 + 0.5 * 2) / 1.5)


def test_mean_variance_by_hand():
    assert prospect.value(mean_variance(0.5), np.array([0.0, 4]), np.array([0.75, 0.25])) == pytest.approx(1 - 0.5 * 3)
    assert prospect.value_of_samples(mean_variance(2), np.array([1.0, 3])) == pytest.approx(2 - 2)


# Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"gamma_gains": 0.27},
            "gamma_gains must be at least 0.28.*0.27",
        ),
        ({"gamma_losses": 0.1}, "gamma_losses must be at least 0.28"),
        ({"alpha": 0}, "alpha must be above 0"),
        ({"beta": -1}, "beta must be above 0"),
        ({"loss_aversion": 0}, "loss_aversion must be above 0"),
        ({"reference": float("nan")}, "reference must be finite"),
        ({"gamma_gains": float("inf")}, "gamma_gains must be finite"),
    ],
)
def test_parameterss_without_sense_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Prospect(**bad)


def test_the_refused_weighting_really_falls():
    p = np.linspace(0, 1, 100001)
    assert (np.diff(weight(p, 0.28)) > 0).all()
    assert (np.diff(weight(p, 0.27)) < 0).any()


def test_bad_distributions_are_refused():
    with pytest.raises(ValueError, match="sum to 1"):
        value(DEFAULT, np.array([1.0, 2]), np.array([0.5, 0.6]))
    with pytest.raises(ValueError, match="at least 0"):
        value(DEFAULT, np.array([1.0, 2]), np.array([1.5, -0.5]))
    with pytest.raises(ValueError, match="at least one outcome"):
        value_of_samples(DEFAULT, np.zeros(0))
    with pytest.raises(ValueError, match="at least one outcome"):
        influence_of_samples(DEFAULT, np.zeros(0))
    for level in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"level.*0, 1"):
            CVaRSettings(level=level)
