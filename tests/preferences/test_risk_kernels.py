"""Compiled risk measures: values by their definitions, gradients by finite differences."""

import numpy as np
import pytest

from coterie.core.group import RiskParameters
from coterie.preferences import prospect
from coterie.preferences.risk_kernels import NEAR, SMOOTHING, make_slopes, risk_value

CPT = prospect.Prospect(0.7, 0.8, 2.0, 0.61, 0.69, 0.1)
EXACT = {
    "mean": (RiskParameters(), lambda p, z: (p * z).sum(axis=-1)),
    "cpt": (CPT.risk_parameters(), lambda p, z: cpt(CPT, p, z)),
    "cvar": (RiskParameters(level=0.3), lambda p, z: cvar(0.3, p, z)),
    "mean-variance": (
        RiskParameters(aversion=0.7),
        lambda p, z: (p * z).sum(-1) - 0.7 * (p * (z - (p * z).sum(-1, keepdims=True)) ** 2).sum(-1),
    ),
}


def ascending(p, z):
    order = np.argsort(z, axis=-1)
    return np.take_along_axis(p, order, -1), np.take_along_axis(z, order, -1)


def cpt(parameters, p, z):
    """CPT by its definition: weights of cumulative probabilities, gains and losses apart."""
    p, z = ascending(p, z)
    at_most, at_least = np.cumsum(p, -1), np.cumsum(p[..., ::-1], -1)[..., ::-1]
    w = prospect.weight
    gains = w(at_least, parameters.gamma_gains) - w(at_least - p, parameters.gamma_gains)
    losses = w(at_most, parameters.gamma_losses) - w(at_most - p, parameters.gamma_losses)
    return (np.where(z >= parameters.reference, gains, losses) * prospect.utility(parameters, z)).sum(-1)


def cvar(level, p, z):
    """The mean of the worst `level` of all probability."""
    p, z = ascending(p, z)
    counted = np.diff(np.minimum(np.cumsum(p, -1), level), prepend=0.0, axis=-1)
    return (counted * z).sum(-1) / level


def evaluate(risk, p, z):
    """Values `[M]` and gradients by probability and by outcome `[M, K]` of distributions `[M, K]`."""
    slopes, found = make_slopes(p.shape[1]), []
    for row in zip(p, z, strict=True):
        value = risk_value(risk, *row, slopes)
        found.append((value, slopes.probability.copy(), slopes.outcome.copy()))
    return tuple(np.array(part) for part in zip(*found, strict=True))


def lotteries(rows=300, outcomes=5, seed=0):
    random = np.random.default_rng(seed)
    chances = 0.9 * random.dirichlet(np.ones(outcomes), rows) + 0.1 / outcomes
    return chances, random.normal(size=(rows, outcomes))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("outcomes", [1, 2, 5, 20])
def test_values_follow_their_definitions(name, outcomes):
    risk, exact = EXACT[name]
    chances, rows = lotteries(outcomes=outcomes)
    assert np.allclose(evaluate(risk, chances, rows)[0], exact(chances, rows), atol=1e-7)


@pytest.mark.parametrize("name", EXACT)
def test_gradients_by_outcome_equal_finite_differences(name):
    risk, exact = EXACT[name]
    chances, rows = lotteries()
    _, _, slopes = evaluate(risk, chances, rows)
    for k in range(rows.shape[1]):
        step = np.zeros(rows.shape[1])
        step[k] = 1e-6
        slope = (exact(chances, rows + step) - exact(chances, rows - step)) / 2e-6
        steep = np.abs(rows[:, k] - risk.reference) > 10 * NEAR  # closer the slope is held down
        assert np.allclose(slopes[steep, k], slope[steep], atol=1e-6)


@pytest.mark.parametrize("name", EXACT)
def test_gradients_by_probability_equal_finite_differences(name):
    """The change of the value when a little probability moves from one outcome to another, by finite differences."""
    risk, exact = EXACT[name]
    chances, rows = lotteries()
    _, slopes, _ = evaluate(risk, chances, rows)
    for k in range(1, rows.shape[1]):
        step = np.zeros(rows.shape[1])
        step[0], step[k] = -SMOOTHING / 4, SMOOTHING / 4
        slope = (exact(chances + step, rows) - exact(chances - step, rows)) / (SMOOTHING / 2)
        off = np.abs(slopes[:, k] - slopes[:, 0] - slope)
        assert np.quantile(off, 0.9) < 0.01  # CVaR has kinks, the weighting bends


def test_certainty_and_impossibility_have_bounded_slopes():
    chances, rows = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    values, by_chance, by_outcome = evaluate(RiskParameters(0.88, 0.88, 2.25, 0.0, 0.61, 0.69), chances, rows)
    assert values.tolist() == [0, 1]
    assert np.isfinite([by_chance, by_outcome]).all()
    assert (by_chance[:, 1] - by_chance[:, 0] > 1).all()  # both ends of the weighting are steep


def test_order_does_not_matter():
    risk, _ = EXACT["cpt"]
    chances, rows = lotteries(rows=20)
    turn = np.random.default_rng(1).permutation(rows.shape[1])
    plain, turned = evaluate(risk, chances, rows), evaluate(risk, chances[:, turn], rows[:, turn])
    assert np.allclose(plain[0], turned[0])
    for one, other in zip(plain[1:], turned[1:], strict=True):
        assert np.allclose(one[:, turn], other)
