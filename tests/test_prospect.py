"""Cumulative prospect theory: by hand, by its closed forms, by sampling, and what must hold for every distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import prospect
from coterie.prospect import NEUTRAL, Prospect, lottery, power, utility, value, value_of_samples, weight

TASTE = Prospect()
TASTES = [TASTE, NEUTRAL, power(0.5), Prospect(0.7, 0.9, 3.0, 0.5, 0.8, reference=0.3), Prospect(1.2, 0.6, 0.5, 1.4, 2)]


@st.composite
def distributions(draw):
    size = draw(st.integers(1, 6))
    outcomes = draw(st.lists(st.integers(-20, 20), min_size=size, max_size=size))
    parts = np.array(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), float)
    return np.array(outcomes, float) / 10, parts / parts.sum()


# By hand ----------------------------------------------------------------------------------------------


def test_utility_by_hand():
    np.testing.assert_allclose(utility(TASTE, [0, 1, 100, -1, -100]), [0, 1, 100**0.88, -2.25, -2.25 * 100**0.88])
    np.testing.assert_allclose(utility(Prospect(reference=10), [10, 14, 6]), [0, 4**0.88, -2.25 * 4**0.88])


def test_weights_are_those_of_tversky_and_kahneman():
    """Small probabilities are overweighted, large ones underweighted; the numbers are those of their figure 1."""
    np.testing.assert_allclose(weight([0, 0.01, 0.1, 0.5, 0.9, 1], 0.61), [0, 0.055, 0.186, 0.421, 0.712, 1], atol=5e-4)
    np.testing.assert_allclose(weight(0.5, 0.69), 0.5**0.69 / (2 * 0.5**0.69) ** (1 / 0.69))
    np.testing.assert_array_equal(weight([0, 0.3, 1], 1.0), [0, 0.3, 1])


def test_gains_are_weighted_from_the_best_inwards():
    w = lambda p: float(weight(p, 0.61))  # noqa: E731
    expected = w(0.2) * 9**0.88 + (w(0.5) - w(0.2)) * 4**0.88 + (1 - w(0.5)) * 1
    assert value(TASTE, np.array([4.0, 1, 9]), np.array([0.3, 0.5, 0.2])) == pytest.approx(expected, rel=1e-12)


def test_losses_are_weighted_from_the_worst_inwards_and_apart_from_gains():
    wp, wm = float(weight(0.3, 0.61)), lambda p: float(weight(p, 0.69))
    expected = wp * 5**0.88 - 2.25 * (wm(0.1) * 8**0.88 + (wm(0.4) - wm(0.1)) * 2**0.88)
    got = value(TASTE, np.array([0.0, -8, 5, -2]), np.array([0.3, 0.1, 0.3, 0.3]))
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("taste", TASTES)
@pytest.mark.parametrize(("better", "worse"), [(1.0, 0.5), (0.9, -0.5), (-0.2, -0.5), (0.3, 0.0), (0.1, 0.1)])
def test_a_lottery_of_two_is_the_value_of_two(taste, better, worse):
    chance = np.linspace(0, 1, 11)
    both = value(taste, np.broadcast_to([better, worse], (11, 2)), np.stack([chance, 1 - chance], axis=1))
    np.testing.assert_allclose(lottery(taste, better, worse, chance), both, atol=1e-12)


def test_a_sure_thing_is_worth_its_utility():
    for taste in TASTES:
        np.testing.assert_allclose(value(taste, np.array([0.7]), np.array([1.0])), utility(taste, 0.7))
        np.testing.assert_allclose(value_of_samples(taste, np.full(9, -0.4)), utility(taste, -0.4), rtol=1e-12)


def test_equal_tastes_for_gains_and_losses_do_not_make_it_linear():
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
    assert value_of_samples(TASTE, x[[3, 1, 0, 6, 5, 2, 4]]) == pytest.approx(total, rel=1e-12)


def test_samples_come_to_the_value_of_what_they_are_drawn_from():
    outcomes, chances = np.array([-1.0, -0.2, 0.0, 0.5, 2.0]), np.array([0.1, 0.2, 0.2, 0.3, 0.2])
    random = np.random.default_rng(1)
    drawn = random.choice(outcomes, p=chances, size=(20, 20000))
    judged = value_of_samples(TASTE, drawn)
    assert judged.mean() == pytest.approx(float(value(TASTE, outcomes, chances)), abs=0.01)
    assert judged.std() < 0.03


def test_quantiles_of_a_uniform_gain():
    """∫ w(1 − x) dx, here by a fine sum, from 1,000 quantiles."""
    fine = np.linspace(0, 1, 200001)
    exact = np.trapezoid(weight(1 - fine, 0.61), fine)
    quantiles = (np.arange(1000) + 0.5) / 1000
    assert value_of_samples(Prospect(1, 1, 1), quantiles) == pytest.approx(exact, abs=1e-4)


def test_batches_are_judged_row_by_row():
    rows = np.random.default_rng(2).normal(size=(3, 4, 9))
    for function in (
        lambda x: value_of_samples(TASTE, x),
        lambda x: value(TASTE, x, np.full(x.shape, 1 / 9)),
        lambda x: prospect.cvar_of_samples(x, 0.3),
        lambda x: prospect.mean_variance_of_samples(x, 0.5),
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


@given(distributions(), st.sampled_from(TASTES), st.integers(0, 5), st.integers(1, 10))
def test_more_is_better(lot, taste, place, gain):
    """First-order stochastic dominance."""
    outcomes, chances = lot
    more = outcomes.copy()
    more[place % len(more)] += gain / 10
    assert value(taste, more, chances) >= value(taste, outcomes, chances) - 1e-12
    assert value_of_samples(taste, more) >= value_of_samples(taste, outcomes) - 1e-12
    assert prospect.cvar(more, chances, 0.4) >= prospect.cvar(outcomes, chances, 0.4) - 1e-12


@given(distributions(), st.sampled_from(TASTES), st.integers(0, 5), st.floats(0, 1))
def test_an_outcome_in_two_parts_is_the_same_outcome(lot, taste, place, share):
    outcomes, chances = lot
    place %= len(outcomes)
    parts = np.append(chances, chances[place] * share)
    parts[place] *= 1 - share
    halves = np.append(outcomes, outcomes[place])
    assert value(taste, halves, parts) == pytest.approx(float(value(taste, outcomes, chances)), abs=1e-7)
    assert prospect.cvar(halves, parts, 0.3) == pytest.approx(float(prospect.cvar(outcomes, chances, 0.3)), abs=1e-9)


@given(distributions(), st.sampled_from(TASTES), st.randoms(use_true_random=False))
def test_order_does_not_matter(lot, taste, random):
    outcomes, chances = lot
    order = list(range(len(outcomes)))
    random.shuffle(order)
    assert value(taste, outcomes[order], chances[order]) == pytest.approx(
        float(value(taste, outcomes, chances)), abs=1e-9
    )


@given(st.floats(0.28, 3), st.floats(0, 1), st.floats(0, 1))
def test_weighting_rises_from_0_to_1(gamma, p, q):
    low, high = weight(min(p, q), gamma), weight(max(p, q), gamma)
    assert 0 <= low <= high + 1e-12 <= 1 + 2e-12


# Other judges -------------------------------------------------------------------------------------------


def test_cvar_by_hand():
    outcomes, chances = np.array([3.0, -10, 0, 5]), np.array([0.4, 0.1, 0.2, 0.3])
    assert prospect.cvar(outcomes, chances, 0.1) == -10
    assert prospect.cvar(outcomes, chances, 0.2) == pytest.approx(-5)
    assert prospect.cvar(outcomes, chances, 0.5) == pytest.approx((-1 + 0 + 0.2 * 3) / 0.5)
    assert prospect.cvar(outcomes, chances, 1) == pytest.approx(outcomes @ chances)
    assert prospect.cvar_of_samples(np.array([4.0, 1, 2, 3]), 0.375) == pytest.approx((1 + 0.5 * 2) / 1.5)


def test_mean_variance_by_hand():
    assert prospect.mean_variance(np.array([0.0, 4]), np.array([0.75, 0.25]), 0.5) == pytest.approx(1 - 0.5 * 3)
    assert prospect.mean_variance_of_samples(np.array([1.0, 3]), 2) == pytest.approx(2 - 2)


# Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"gamma_gains": 0.27}, "gamma_gains .*not monotone.* must be at least 0.28, got 0.27"),
        ({"gamma_losses": 0.1}, "gamma_losses .* must be at least 0.28"),
        ({"alpha": 0}, "alpha must be above 0"),
        ({"beta": -1}, "beta must be above 0"),
        ({"loss_aversion": 0}, "loss_aversion must be above 0"),
        ({"reference": float("nan")}, "reference must be finite"),
        ({"gamma_gains": float("inf")}, "gamma_gains must be finite"),
    ],
)
def test_tastes_without_sense_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Prospect(**bad)


def test_the_refused_weighting_really_falls():
    p = np.linspace(0, 1, 100001)
    assert (np.diff(weight(p, 0.28)) > 0).all()
    assert (np.diff(weight(p, 0.27)) < 0).any()


def test_bad_distributions_are_refused():
    with pytest.raises(ValueError, match="sum to 1"):
        value(TASTE, np.array([1.0, 2]), np.array([0.5, 0.6]))
    with pytest.raises(ValueError, match="at least 0"):
        value(TASTE, np.array([1.0, 2]), np.array([1.5, -0.5]))
    with pytest.raises(ValueError, match="at least one outcome"):
        value_of_samples(TASTE, np.zeros(0))
    for level in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"level must lie in \(0, 1\]"):
            prospect.cvar_of_samples(np.ones(3), level)
