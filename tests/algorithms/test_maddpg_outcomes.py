"""Outcome distributions: parsing, targets, losses with their slopes, and the actor's objective."""

import numpy as np
import pytest

from coterie.algorithms.maddpg.outcomes import (
    Targets,
    actor_objective,
    bootstrap,
    count_outcomes,
    critic_loss,
    keep_lower,
    make_scratch,
    make_targets,
    mean_square,
    parse_outputs,
)
from coterie.core.group import RiskParameters
from coterie.preferences.prospect import Prospect, value

CPT = Prospect(reference=0.1).risk_parameters()


def parsed(out):
    """Outcomes and probabilities `[Q]` of one row of outputs, and their mean."""
    probability, outcome = np.empty((2, count_outcomes(len(out))), np.float32)
    mean = parse_outputs(np.array(out, np.float32), probability, outcome)
    return outcome, probability, mean


def targets_of(outcome, probability, weight=None):
    outcome = np.array(outcome, np.float32)
    weight = np.full(len(outcome), 1 / len(outcome)) if weight is None else weight
    probability = np.broadcast_to(np.array(probability, np.float32), outcome.shape).copy()
    return Targets(outcome, probability, np.array(weight, np.float32))


def loss_of(out, targets, running=None):
    """The loss of outputs `[M, F]` and its slopes; amounts are scaled by earlier targets if `running` holds any."""
    slopes = np.array(out, np.float32)
    scale = mean_square(targets, np.zeros(2) if running is None else running)
    found = critic_loss(slopes, targets, scale, make_scratch(*slopes.shape))
    return found[0], slopes


def numeric_slopes(function, out, step):
    """Central differences of a function of outputs `[M, F]`."""
    found = np.zeros(out.shape)
    for at in np.ndindex(*out.shape):
        moved = np.zeros(out.shape, np.float32)
        moved[at] = step
        found[at] = (function(out + moved) - function(out - moved)) / (2 * step)
    return found


class Adam:
    """Kingma and Ba 2015 for one array, which it changes; PyTorch's takes longer than the loss."""

    def __init__(self, out, learning_rate):
        self.out, self.learning_rate, self.steps = out, learning_rate, 0
        self.mean, self.square = np.zeros((2, *out.shape))

    def step(self, slopes):
        self.steps += 1
        self.mean += 0.1 * (slopes - self.mean)
        self.square += 0.001 * (slopes * slopes - self.square)
        deviation = np.sqrt(self.square / (1 - 0.999**self.steps)) + 1e-8
        self.out -= self.learning_rate * self.mean / (1 - 0.9**self.steps) / deviation


def fit(first, draw, steps):
    """Minimise the critic's loss of one row of outputs over drawn targets `(outcomes [M, Q], probabilities)`."""
    out, running = np.array(first), np.zeros(2)
    best = Adam(out, 0.02)
    for _ in range(steps):
        targets = targets_of(*draw())
        _, slopes = loss_of(np.tile(out, (len(targets.weight), 1)), targets, running)
        best.step(slopes.sum(axis=0))
    return parsed(out)


# Parsing ------------------------------------------------------------------------------------------------


def test_one_output_is_a_mean():
    outcome, probability, mean = parsed([3.0])
    assert (outcome.tolist(), probability.tolist(), mean) == ([3.0], [1.0], 3.0)


def test_a_hurdle_model_has_a_probability_and_an_amount():
    outcome, probability, mean = parsed([-2.0, 0.7])
    nonzero = 1 / (1 + np.exp(2.0))
    assert outcome == pytest.approx([0, 0.7])
    assert probability == pytest.approx([1 - nonzero, nonzero])
    assert mean == pytest.approx(nonzero * 0.7)


def test_a_hurdle_model_may_have_several_amounts():
    outcome, probability, mean = parsed([-2.0, 0.0, np.log(3.0), 0.7, 0.5])
    nonzero = 1 / (1 + np.exp(2.0))
    assert outcome == pytest.approx([0, 0.7, 0.5])
    assert probability == pytest.approx([1 - nonzero, nonzero / 4, nonzero * 3 / 4])
    assert mean == pytest.approx(nonzero * (0.7 + 3 * 0.5) / 4)


# Targets ------------------------------------------------------------------------------------------------


def test_next_outcomes_are_discounted_and_an_end_is_certain():
    targets = targets_of([[1.0, 3.0], [1.0, 3.0]], [0.25, 0.75])
    bootstrap(np.array([10.0, 20.0], np.float32), np.array([0.5, 0.0], np.float32), targets)
    assert targets.outcome.tolist() == [[10.5, 11.5], [20.0, 20.0]]
    assert targets.probability.tolist() == [[0.25, 0.75], [1.0, 0.0]]


def test_the_distribution_with_the_lower_mean_is_kept_whole():
    one = np.array([[2.0, 0.0, 0.0, 9.0], [0.0, 0.0, 5.0, 5.0]], np.float32)
    other = np.array([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 4.0, 5.0]], np.float32)
    targets, scratch = make_targets(2, 4), make_scratch(2, 4)
    keep_lower(one, True, targets, scratch)
    keep_lower(other, False, targets, scratch)
    assert targets.outcome.tolist() == [[0.0, 9.0], [4.0, 5.0]]
    assert np.array_equal(targets.probability[0], parsed(one[0])[1])


# The critic's loss --------------------------------------------------------------------------------------


def test_a_mean_has_half_the_squared_error():
    assert loss_of([[3.0]], targets_of([[1.0]], [1.0])) == (2.0, [[2.0]])


def test_quantiles_have_the_loss_of_quantile_regression_at_all_levels():
    logits, target = np.log([0.2, 0.5, 0.3]).tolist(), 1.25
    levels = (np.arange(20_000) + 0.5) / 20_000
    quantile = np.array([0.5, 2.0, 3.0])[np.searchsorted([0.2, 0.7], levels)]
    pinball = (np.where(target > quantile, levels, levels - 1) * (target - quantile)).mean()
    certain = targets_of([[target, 0, 0]], [1.0, 0, 0])
    assert loss_of([[*logits, 0.5, 2.0, 3.0]], certain)[0] == pytest.approx(2 * pinball, abs=1e-4)


def test_a_hurdle_model_has_the_loss_of_its_likelihood():
    outcome, probability = [[0.8, 9.0], [0.0, 9.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0], [0.25, 0.75]]
    targets = targets_of(outcome, probability)
    scale, predicted = mean_square(targets, np.zeros(2)), 1 / (1 + np.exp(-0.4))
    assert scale == pytest.approx((0.8**2 + 0.25) / 1.25)
    nonzero, error = np.array([1.0, 0.0, 0.25]), np.array([0.3**2, 0.0, 0.25 * 0.5**2])
    expected = -nonzero * np.log(predicted) - (1 - nonzero) * np.log(1 - predicted) + error / (2 * scale)
    assert loss_of([[0.4, 0.5]] * 3, targets)[0] == pytest.approx(expected.mean(), abs=1e-6)


def test_the_scale_of_amounts_is_the_mean_square_of_earlier_ones():
    outcome, running = [[3.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], np.zeros(2)
    assert mean_square(targets_of(np.zeros((2, 2)), [0.5, 0.5]), running) == 1  # nothing is known yet
    assert mean_square(targets_of(outcome, [0.5, 0.5]), running) == pytest.approx((9 + 1 + 4) / 3)
    assert mean_square(targets_of([[50.0, 0.0]], [1.0, 0.0]), running) == pytest.approx((9 + 1 + 4) / 3)
    assert mean_square(targets_of(np.zeros((2, 2)), [0.5, 0.5]), running) > 100  # the 50 counts from now on
    assert mean_square(targets_of(outcome, [0.5, 0.5], [1, 0, 0, 0]), np.zeros(2)) == pytest.approx(9)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "counts"), [([0.0, 0.5], 1), ([0.0, 0.0, 0.1, 0.3, 0.9], 2)])
def test_amounts_that_are_random_are_predicted_without_bias(first, counts):
    """2% of rows pay an exponential amount of mean 1: the expected outcome is 0.02."""
    random, found = np.random.default_rng(0), []
    out, running = np.array(first), np.zeros(2)
    best = Adam(out, 0.005)
    for step in range(12_000):
        seen = np.where(random.random(64) < 0.02, random.exponential(size=64), 0.0)
        outcome = np.concatenate([seen[:, None], np.zeros((64, counts))], axis=1)
        targets = targets_of(outcome, [1.0] + [0.0] * counts)
        _, slopes = loss_of(np.tile(out, (64, 1)), targets, running)
        best.step(slopes.sum(axis=0))
        if step >= 2000:
            found.append(out.copy())
    outcome, probability, mean = map(np.array, zip(*(parsed(row) for row in found), strict=True))
    assert probability[:, 1:].sum(axis=1).mean() == pytest.approx(0.02, rel=0.05)
    assert mean.mean() == pytest.approx(0.02, rel=0.08 if counts == 1 else 0.15)  # two steps approximate quantiles


@pytest.mark.parametrize("outputs", [1, 2, 4, 5, 6, 7])
def test_slopes_are_those_of_the_loss(outputs):
    """Central differences in float32, weights included; the scale of a hurdle model does not depend on outputs."""
    random = np.random.default_rng(outputs + 10)
    count = count_outcomes(outputs)
    outcome = random.normal(size=(5, count)) * (random.random((5, count)) < 0.7)
    targets = targets_of(outcome, random.dirichlet(np.ones(count), 5), random.random(5))
    out = random.normal(size=(5, outputs)).astype(np.float32)
    expected = numeric_slopes(lambda x: loss_of(x, targets)[0], out, 2e-3)
    assert np.allclose(loss_of(out, targets)[1], expected, atol=3e-3)


def test_twins_have_the_same_targets():
    targets = targets_of([[0.0, 1.0, 4.0]], [0.5, 0.375, 0.125])
    out = [[0.5, 0.1, -0.1, 0.3, 2.0]]
    first, second = loss_of(out, targets), loss_of(out, targets)
    assert first[0] == second[0]
    assert np.array_equal(first[1], second[1])


@pytest.mark.slow
def test_quantiles_learn_outcomes_and_probabilities_from_samples():
    random = np.random.default_rng(0)

    def draw():
        seen = np.where(random.random(64) < 0.3, 1.0, 0.0)
        return np.stack([seen, np.zeros(64)], axis=1), [1.0, 0.0]

    outcome, probability, _ = fit([0.0, 0.0, -0.1, 0.1], draw, 1500)
    assert outcome == pytest.approx([0, 1], abs=0.03)
    assert probability == pytest.approx([0.7, 0.3], abs=0.05)


@pytest.mark.slow
def test_a_hurdle_model_learns_several_amounts():
    """0 in half of all cases, else 1 or 4 with probabilities 0.75 and 0.25; their mean is 1.75."""
    draw = lambda: ([[0.0, 1.0, 4.0]], [0.5, 0.375, 0.125])  # noqa: E731
    outcome, probability, _ = fit([0.5, 0.1, -0.1, 0.3, 2.0], draw, 3000)
    assert outcome == pytest.approx([0, 1, 4], abs=0.05)
    assert probability == pytest.approx([0.5, 0.375, 0.125], abs=0.01)


@pytest.mark.slow
def test_a_rare_gain_is_learned_in_proportion():
    """One in 500 is learned to within a fifth, together with one in two; squared errors would not show it."""
    random, out, running = np.random.default_rng(0), np.zeros((2, 2)), np.zeros(2)
    best = Adam(out, 0.02)
    for _ in range(3000):
        won = (random.random((256, 2)) < [0.5, 0.002]) * [1.0, 0.05]
        outcome = np.stack([won, np.zeros((256, 2))], axis=-1).reshape(512, 2)
        _, slopes = loss_of(np.tile(out, (256, 1)), targets_of(outcome, [1.0, 0.0]), running)
        best.step(slopes.reshape(256, 2, 2).sum(axis=0))
    found = [parsed(row) for row in out]
    assert [probability[1] for _, probability, _ in found] == pytest.approx([0.5, 0.002], rel=0.2)
    assert [outcome[1] for outcome, _, _ in found] == pytest.approx([1.0, 0.05], rel=0.05)


# The actor's objective ----------------------------------------------------------------------------------


def objective(out, weight, risk=CPT, scale_by_std=False):
    """The mean risk value of outputs `[M, F]`, and the slopes of its negative."""
    slopes = np.array(out, np.float32)
    scratch = make_scratch(*slopes.shape)
    found = actor_objective(risk, slopes, np.array(weight, np.float32), scale_by_std, scratch)
    return found, slopes, scratch.std


@pytest.mark.parametrize("outputs", [1, 2, 6, 7])
def test_the_objective_is_the_mean_risk_value_and_has_its_slopes(outputs):
    out = np.array([[0.3, -0.2, 0.5, -0.4, 0.2, 0.9, 0.6], [0.35, 0.4, 0.2, 0.8, -0.7, 0.3, 0.5]], np.float32)
    out, weight = out[:, :outputs].copy(), [0.25, 0.75]

    def exact(rows):
        lotteries = [parsed(row)[:2] for row in rows]
        return weight @ np.array([value(CPT, *(part.astype(float) for part in lottery)) for lottery in lotteries])

    found, slopes, _ = objective(out, weight)
    assert found == pytest.approx(exact(out), abs=1e-4)
    assert np.allclose(-slopes, numeric_slopes(exact, out, 0.002), atol=0.01)


def test_scale_by_std_divides_by_deviations():
    out, weight = [[0.0, 1.0], [0.0, 0.01], [0.0, 0.0], [-9.0, 0.2]], [0.25] * 4
    _, plain, std = objective(out, weight, RiskParameters())
    _, scaled, _ = objective(out, weight, RiskParameters(), scale_by_std=True)
    assert std[[0, 2]].tolist() == [0.5, 0.0]
    factor = std.mean() / (std + 0.02 * std.mean())
    assert np.allclose(scaled, plain * factor[:, None], rtol=1e-4)
    assert factor[2] == pytest.approx(50)  # no outcome is uncertain: the greatest factor
    same = objective(np.zeros((2, 2)), [0.5, 0.5], scale_by_std=True)[1]
    assert np.array_equal(same, objective(np.zeros((2, 2)), [0.5, 0.5])[1])
