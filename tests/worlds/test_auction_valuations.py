"""Distributions of valuations: against SciPy's, by hand, and what is refused."""

import numpy as np
import pytest
from scipy import stats

from coterie.worlds.auction.valuations import UNIFORM, ValuationSettings, interpolate, tabulate

LEVELS = np.array([0.0, 0.01, 0.2, 0.5, 0.77, 0.99, 1.0])


def squared(levels):
    """A user's quantile function."""
    return levels**2


def too_large(levels):
    return 2 * levels


def falling(levels):
    return 1 - levels


def short(levels):
    return levels[1:]


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        (UNIFORM, stats.uniform()),
        (ValuationSettings(low=0.25, high=0.75), stats.uniform(0.25, 0.5)),
        (ValuationSettings("beta", alpha=2, beta=5), stats.beta(2, 5)),
        (ValuationSettings("truncated_normal", mean=0.6, deviation=0.3), stats.truncnorm(-2, 4 / 3, 0.6, 0.3)),
        (
            ValuationSettings("truncated_normal", low=0.4, high=0.9, mean=0.5, deviation=0.1),
            stats.truncnorm(-1, 4, 0.5, 0.1),
        ),
        (ValuationSettings(f"{__name__}:squared"), stats.beta(0.5, 1)),
    ],
)
def test_continuous_ones_are_those_of_scipy(settings, theirs):
    table = tabulate(settings)
    np.testing.assert_allclose(table.quantile(LEVELS), theirs.ppf(LEVELS), atol=2e-4)
    values = np.linspace(table.low, table.high, 9)
    np.testing.assert_allclose(table.cdf(values), theirs.cdf(values), atol=2e-4)
    np.testing.assert_array_equal(table.below(values), table.cdf(values))
    np.testing.assert_allclose(table.cdf([-0.1, 1.1]), [0, 1])


def test_points_by_hand():
    table = tabulate(ValuationSettings("points", points=(0.8, 0.2, 0.5), weights=(2, 1, 1)))
    np.testing.assert_array_equal(table.quantile([0, 0.25, 0.26, 0.5, 0.51, 1]), [0.2, 0.2, 0.5, 0.5, 0.8, 0.8])
    np.testing.assert_array_equal(table.cdf([0.1, 0.2, 0.3, 0.5, 0.8, 0.9]), [0, 0.25, 0.25, 0.5, 1, 1])
    np.testing.assert_array_equal(table.below([0.1, 0.2, 0.3, 0.5, 0.8, 0.9]), [0, 0, 0.25, 0.25, 0.5, 1])
    assert tabulate(ValuationSettings("points", points=(0.3,))).quantile(0.4) == 0.3


def test_tables_run_straight_between_their_entries():
    at, heights = np.array([0.0, 1, 1, 2]), np.array([0.0, 1, 3, 4])
    np.testing.assert_allclose(interpolate(np.array([-1, 0.5, 1, 1.5, 9]), at, heights), [0, 0.5, 3, 3.5, 4])
    np.testing.assert_allclose(interpolate(np.array([-1, 0.5, 1, 1.5, 9]), at, heights, "left"), [0, 0.5, 1, 3.5, 4])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"name": "normal"}, "must be one of uniform, beta, truncated_normal, points or package.module:Name"),
        ({"high": 1.5}, r"high must lie in \[0, 1\], got 1.5"),
        ({"low": -0.5}, r"low must lie in \[0, 1\], got -0.5"),
        ({"low": 0.7, "high": 0.7}, "low must lie below high"),
        ({"name": "beta", "alpha": 0}, "alpha must be above 0"),
        ({"name": "beta", "beta": -2}, "beta must be above 0"),
        ({"name": "truncated_normal", "deviation": 0}, "deviation must be above 0"),
        ({"name": "points"}, "points must name at least one"),
        ({"name": "points", "points": (0.2, 1.2)}, r"points must lie in \[0, 1\], got 1.2"),
        ({"name": "points", "points": (0.2, 0.2)}, "points must differ"),
        ({"name": "points", "points": (0.2, 0.3), "weights": (1,)}, "weights must be as many as points, 2, got 1"),
        ({"name": "points", "points": (0.2, 0.3), "weights": (1, 0)}, "weights must be above 0"),
    ],
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        ValuationSettings(**bad)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:too_large", r"too_large' must lie in \[0, 1\], got 1.0\d* at quantile 0.50\d*; rescale"),
        (f"{__name__}:falling", "falling' must be a quantile function; it falls after quantile 0"),
        (f"{__name__}:short", "short' must map .* probabilities to values"),
        (f"{__name__}:absent", "has no 'absent'"),
        ("numpy:pi", "'numpy:pi' must be a function of an array of probabilities, got 3.14"),
        ("numpy.linalg:inv", "'numpy.linalg:inv' failed on 4097 probabilities: LinAlgError"),
        ("no_such_module:thing", "needs the module 'no_such_module'"),
    ],
)
def test_bad_functions_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        tabulate(ValuationSettings(name))


def test_an_empty_normal_is_refused():
    with pytest.raises(ValueError, match=r"truncated_normal with mean -9 .* between 0\.9 and 1"):
        tabulate(ValuationSettings("truncated_normal", low=0.9, mean=-9, deviation=0.1))
