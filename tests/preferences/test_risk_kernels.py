"""Compiled values of distributions: those of `prospect.py`, with slopes that finite differences confirm."""

import numpy as np
import pytest

from coterie.core.group import RiskParameters
from coterie.preferences import prospect
from coterie.preferences.risk_kernels import APART, NEAR, judge_rows

TASTE = prospect.Prospect(0.7, 0.8, 2.0, 0.61, 0.69, 0.1)
EXACT = {
    "mean": (RiskParameters(), lambda p, z: (p * z).sum(axis=-1)),
    "cpt": (RiskParameters(0.7, 0.8, 2.0, 0.1, 0.61, 0.69), lambda p, z: prospect.value(TASTE, z, p)),
    "cvar": (RiskParameters(level=0.3), lambda p, z: prospect.cvar(z, p, 0.3)),
    "mean-variance": (RiskParameters(aversion=0.7), lambda p, z: prospect.mean_variance(z, p, 0.7)),
}


def lotteries(rows=300, outcomes=5, seed=0):
    random = np.random.default_rng(seed)
    chances = 0.9 * random.dirichlet(np.ones(outcomes), rows) + 0.1 / outcomes
    return chances, random.normal(size=(rows, outcomes))


@pytest.mark.parametrize("taste", EXACT)
@pytest.mark.parametrize("outcomes", [1, 2, 5, 20])
def test_values_are_those_of_prospect(taste, outcomes):
    judge, exact = EXACT[taste]
    chances, rows = lotteries(outcomes=outcomes)
    assert np.allclose(judge_rows(judge, chances, rows)[0], exact(chances, rows), atol=1e-7)


@pytest.mark.parametrize("taste", EXACT)
def test_outcomes_are_sloped_as_differences_say(taste):
    judge, exact = EXACT[taste]
    chances, rows = lotteries()
    _, _, slopes = judge_rows(judge, chances, rows)
    for k in range(rows.shape[1]):
        step = np.zeros(rows.shape[1])
        step[k] = 1e-6
        slope = (exact(chances, rows + step) - exact(chances, rows - step)) / 2e-6
        steep = np.abs(rows[:, k] - judge.reference) > 10 * NEAR  # closer the slope is held down
        assert np.allclose(slopes[steep, k], slope[steep], atol=1e-6)


@pytest.mark.parametrize("taste", EXACT)
def test_chances_are_sloped_as_differences_say(taste):
    """What moving a little chance from one outcome to another changes; the weighting is sloped over a short way."""
    judge, exact = EXACT[taste]
    chances, rows = lotteries()
    _, slopes, _ = judge_rows(judge, chances, rows)
    for k in range(1, rows.shape[1]):
        step = np.zeros(rows.shape[1])
        step[0], step[k] = -APART / 4, APART / 4
        slope = (exact(chances + step, rows) - exact(chances - step, rows)) / (APART / 2)
        off = np.abs(slopes[:, k] - slopes[:, 0] - slope)
        assert np.quantile(off, 0.9) < 0.01  # CVaR has kinks, the weighting bends


def test_certainty_and_impossibility_have_bounded_slopes():
    chances, rows = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    values, by_chance, by_outcome = judge_rows(RiskParameters(0.88, 0.88, 2.25, 0.0, 0.61, 0.69), chances, rows)
    assert values.tolist() == [0, 1]
    assert np.isfinite([by_chance, by_outcome]).all()
    assert (by_chance[:, 1] - by_chance[:, 0] > 1).all()  # both ends of the weighting are steep


def test_order_does_not_matter():
    judge, _ = EXACT["cpt"]
    chances, rows = lotteries(rows=20)
    turn = np.random.default_rng(1).permutation(rows.shape[1])
    plain, turned = judge_rows(judge, chances, rows), judge_rows(judge, chances[:, turn], rows[:, turn])
    assert np.allclose(plain[0], turned[0])
    for one, other in zip(plain[1:], turned[1:], strict=True):
        assert np.allclose(one[:, turn], other)
