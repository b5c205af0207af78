"""Distributions: acting and judging agree, frequencies match, densities integrate to 1."""

import itertools
import math

import numpy as np
import pytest
import torch

from coterie.core.types import Box, Discrete, MultiDiscrete
from coterie.nn import distributions
from coterie.nn.distributions import Beta, Choices, SquashedGaussian, head
from helpers.distributions import compiled_slopes
from helpers.distributions import evaluate_actions as plain
from helpers.small_worlds import ACTIONS, generator

BOXES = {
    "flat": Box((2,), np.array([-1.0, 0.0]), np.array([1.0, 5.0])),
    "matrix": Box((2, 3), -2.0, 2.0),
    "number": Box((), 0.0, 1.0),
}
ALL = [(space, family) for space in ACTIONS.values() for family in ("beta", "gaussian")]


def outputs(size, rows=(7, 2), seed=0, scale=1.5):
    return (generator(seed).standard_normal((*rows, size)) * scale).astype(np.float32)


def evaluate_actions(one, out, action, mask=None):
    """What the distribution says, and that of plain PyTorch and its slopes agree."""
    flat, rows = np.ascontiguousarray(out.reshape(-1, one.outputs)), math.prod(out.shape[:-1])
    slope, entropy_slope = generator(5).standard_normal((2, rows), np.float32)
    *found, slopes = compiled_slopes(one, flat, action, mask, slope, entropy_slope)
    tensor = torch.from_numpy(flat).double().requires_grad_()
    given = torch.from_numpy(np.ascontiguousarray(action.reshape(rows, *action.shape[out.ndim - 1 :])))
    legal = None if mask is None else torch.from_numpy(mask.reshape(rows, -1))
    expected = plain(one, tensor, given, legal)
    (torch.from_numpy(slope).double() @ expected[0] + torch.from_numpy(entropy_slope).double() @ expected[1]).backward()
    edge = np.abs(slopes - tensor.grad.numpy()) / (1 + np.abs(slopes))
    assert np.quantile(edge, 0.98) < 1e-3  # float32 is coarse at the very edge of a box
    for mine, theirs in zip(found, expected, strict=True):
        assert np.quantile(np.abs(mine - theirs.detach().numpy()), 0.95) < 1e-3
    return [part.reshape(out.shape[:-1]) for part in found]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("space", "family"), ALL + [(box, f) for box in BOXES.values() for f in ("beta", "gaussian")])
def test_acting_and_judging_agree(space, family, greedy):
    one = head(space, family)
    out = outputs(one.outputs)
    action, log_prob = one.act(out, None, generator(1), greedy)
    assert log_prob.shape == (7, 2)
    assert log_prob.dtype == np.float32
    said, entropy = evaluate_actions(one, out, action)
    assert np.allclose(said, log_prob, atol=1e-5)
    assert entropy.shape == (7, 2)


def test_masked_choices_agree_too():
    one, out = head(Discrete(5), "beta"), outputs(5)
    mask = generator(2).random(out.shape) < 0.5
    mask[..., 3] = True
    action, log_prob = one.act(out, mask, generator(1), False)
    assert np.allclose(evaluate_actions(one, out, action, mask)[0], log_prob, atol=1e-5)
    assert np.take_along_axis(mask, action[..., None], -1).all()
    legal = np.where(mask, out, -np.inf)
    assert np.array_equal(one.act(out, mask, generator(1), True)[0], legal.argmax(-1))


@pytest.mark.parametrize("illegal", [0, 1, 2])
def test_a_masked_action_is_never_drawn_however_unlikely_the_others(illegal):
    one = head(Discrete(3), "beta")
    out = np.full((20_000, 3), -80.0, np.float32)
    out[:, illegal] = 80.0
    mask = np.ones(out.shape, bool)
    mask[:, illegal] = False
    action, log_prob = one.act(out, mask, generator(), False)
    assert set(action.tolist()) == {0, 1, 2} - {illegal}
    assert np.allclose(log_prob, math.log(0.5))
    said, entropy = evaluate_actions(one, out, action, mask)
    assert np.allclose(said, math.log(0.5))
    assert np.allclose(entropy, math.log(2))


def test_one_legal_action_is_certain():
    one = head(Discrete(3), "beta")
    mask = np.eye(3, dtype=bool)
    out = outputs(3, (3,), scale=30)
    for greedy in (False, True):
        action, log_prob = one.act(out, mask, generator(), greedy)
        assert action.tolist() == [0, 1, 2]
        assert log_prob.tolist() == [0, 0, 0]
    assert evaluate_actions(one, out, action, mask)[1].tolist() == [0, 0, 0]


def test_choices_come_as_often_as_their_probabilities_say():
    logits = np.array([0.3, -1.0, 2.0, 0.0, 1.0], np.float32)
    one = head(MultiDiscrete((3, 2)), "beta")
    action, log_prob = one.act(np.tile(logits, (60_000, 1)), None, generator(), False)
    first, second = (np.exp(part) / np.exp(part).sum() for part in (logits[:3], logits[3:]))
    for i, j in itertools.product(range(3), range(2)):
        chosen = (action == [i, j]).all(1)
        p = first[i] * second[j]
        assert abs(chosen.mean() - p) < 4 * math.sqrt(p / 60_000)
        assert np.allclose(np.exp(log_prob[chosen]), p, rtol=1e-5)


def test_entropy_of_choices_is_summed_over_them():
    out = outputs(5)
    said = evaluate_actions(head(MultiDiscrete((3, 2)), "beta"), out, np.zeros((7, 2, 2), np.int64))
    said = [torch.from_numpy(part) for part in said]
    parts = [torch.distributions.Categorical(logits=torch.from_numpy(p)) for p in np.split(out, [3], axis=-1)]
    assert torch.allclose(said[1], sum(p.entropy() for p in parts), atol=1e-6)
    assert torch.allclose(said[0], sum(p.log_prob(torch.zeros(7, 2)) for p in parts), atol=1e-6)


def reference(one, out):
    """The same distribution out of torch.distributions."""
    left, right = torch.from_numpy(out).double().chunk(2, dim=-1)
    low, span = torch.from_numpy(one.low).double(), torch.from_numpy(one.range).double()
    d = torch.distributions
    if isinstance(one, Beta):
        softplus = torch.nn.functional.softplus
        base, first = d.Beta(1 + softplus(left), 1 + softplus(right)), []
    else:  # tanh z from −1 … 1 to 0 … 1
        base = d.Normal(left, right.clamp(-5, 2).exp())
        first = [d.TanhTransform(), d.AffineTransform(0.5, 0.5)]
    return d.Independent(d.TransformedDistribution(base, [*first, d.AffineTransform(low, span)]), 1)


@pytest.mark.parametrize("family", ["beta", "gaussian"])
def test_densities_are_those_of_torch(family):
    one = head(BOXES["flat"], family)
    out = outputs(4, (50,), scale=0.7)
    action, log_prob = one.act(out, None, generator(3), False)
    expected = reference(one, out).log_prob(torch.from_numpy(action).double()).numpy()
    inner = (np.abs((action - one.low) / one.range - 0.5) < 0.49).all(-1)  # float32 is coarse at the very edge
    assert inner.sum() > 30
    assert np.allclose(log_prob[inner], expected[inner], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["beta", "gaussian"])
@pytest.mark.parametrize("seed", range(3))
def test_densities_integrate_to_one_over_the_box(family, seed):
    one = head(BOXES["flat"], family)
    grid = 600
    x, y = ((np.arange(grid) + 0.5) / grid * span + low for low, span in zip(one.low, one.range, strict=True))
    points = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)
    out = np.tile(outputs(4, (1,), seed, scale=0.5) - [0, 0, 1, 1], (len(points), 1)).astype(np.float32)
    density = np.exp(evaluate_actions(one, out, points)[0].astype(np.float64))
    assert density.sum() * np.prod(one.range) / grid**2 == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("family", ["beta", "gaussian"])
def test_samples_follow_the_density(family):
    one = head(Box((1,), -2.0, 6.0), family)
    out = np.tile(np.array([[0.7, -0.4]], np.float32), (40_000, 1))
    action, _ = one.act(out, None, generator(), False)
    middles = np.linspace(-2, 6, 801)[:-1] + 0.005
    density = np.exp(evaluate_actions(one, out[:800], middles[:, None].astype(np.float32))[0])
    for edge in (-1.0, 1.0, 3.0, 5.0):
        assert (action < edge).mean() == pytest.approx(density[middles < edge].sum() * 0.01, abs=0.01)


def test_beta_entropy_is_that_of_the_stretched_variable():
    one = head(BOXES["flat"], "beta")
    out = outputs(4, (6,))
    action, _ = one.act(out, None, generator(), False)
    many = np.repeat(out[:1], 40_000, axis=0)
    _, log_prob = one.act(many, None, generator(), False)
    assert evaluate_actions(one, out, action)[1][0] == pytest.approx(-log_prob.mean(), abs=0.03)


def squashed_entropy(mean, log_std, low, high):
    """−∫ p log p of low + (high − low)·(tanh z + 1)/2 with z normal, by a sum over z in double precision."""
    std = np.exp(log_std)
    z = mean + std * np.linspace(-10, 10, 200_001)
    density = np.exp(-0.5 * ((z - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    stretch = (high - low) / 2 / np.cosh(z) ** 2  # d action / dz
    kept = density > 0
    return -(density[kept] * np.log(density[kept] / stretch[kept])).sum() * (z[1] - z[0])


POINTS = [(0.0, 0.0), (0.0, 2.0), (0.0, -4.0), (1.3, 0.94), (-2.0, 0.3), (4.0, -1.0), (0.2, 1.5)]


@pytest.mark.parametrize(("mean", "log_std"), POINTS)
def test_gaussian_entropy_and_its_slopes_are_those_of_numerical_integration(mean, log_std):
    one = head(Box((1,), -1.0, 3.0), "gaussian")
    out, nothing = np.array([[mean, log_std]], np.float32), np.zeros(1, np.float32)
    _, entropy, slopes = compiled_slopes(one, out, np.array([[0.5]]), None, nothing, nothing + 1)
    assert float(entropy[0]) == pytest.approx(squashed_entropy(mean, log_std, -1, 3), abs=1e-3)
    step, found = 1e-4, []
    for moved in ((step, 0), (0, step if log_std < 2 else -step)):
        change = squashed_entropy(mean + moved[0], log_std + moved[1], -1, 3) - squashed_entropy(mean, log_std, -1, 3)
        found.append(change / sum(moved))
    assert slopes[0].tolist() == pytest.approx(found, abs=5e-3)


@pytest.mark.slow
def test_the_most_random_squashed_gaussian_is_nearly_uniform():
    one = head(Box((1,), -1.0, 3.0), "gaussian")
    out = torch.tensor([[1.0, 1.5]], requires_grad=True)
    rise = torch.optim.Adam([out], lr=0.02)
    for _ in range(500):
        rise.zero_grad()
        (-distributions.evaluate_actions(one, out, np.array([[0.5]]), None)[1]).sum().backward()
        rise.step()
    many = np.tile(out.detach().numpy(), (20_000, 1))
    action = one.act(many, None, generator(), False)[0]
    assert np.histogram(action, 4, (-1, 3))[0] / 20_000 == pytest.approx([0.25] * 4, abs=0.03)
    entropy = distributions.evaluate_actions(one, out, np.array([[0.5]]), None)[1]
    assert float(entropy.detach()) == pytest.approx(np.log(4), abs=0.02)


@pytest.mark.parametrize("family", ["beta", "gaussian"])
@pytest.mark.parametrize("extreme", [-60.0, 60.0])
def test_extreme_outputs_stay_inside_the_box_and_finite(family, extreme):
    space = Box((2,), np.array([1000.0, -1e-3]), np.array([1001.0, 1e-3]))
    one = head(space, family)
    out = np.full((500, 4), extreme, np.float32)
    out[:, 2:] *= -1
    action, log_prob = one.act(out, None, generator(), False)
    assert ((action >= space.low) & (action <= space.high.astype(np.float32))).all()
    assert np.isfinite(log_prob).all()
    ones = np.ones(len(out), np.float32)
    assert all(np.isfinite(part).all() for part in compiled_slopes(one, out, action, None, ones, ones))


def test_greedy_is_the_middle_of_the_distribution():
    zeros = np.zeros((1, 4), np.float32)
    for family in ("beta", "gaussian"):
        action, _ = head(BOXES["flat"], family).act(zeros, None, generator(), True)
        assert np.allclose(action, [[0.0, 2.5]])
    assert np.allclose(
        np.abs(head(BOXES["flat"], "gaussian").act(zeros + 3, None, generator(), True)[0] - [0, 2.5]),
        [np.tanh(3), 2.5 * np.tanh(3)],
    )


def test_every_space_finds_its_family():
    assert isinstance(head(BOXES["flat"], "beta"), Beta)
    assert isinstance(head(BOXES["flat"], "gaussian"), SquashedGaussian)
    for space in (Discrete(3), MultiDiscrete((3, 2))):
        assert isinstance(head(space, "gaussian"), Choices)


@pytest.mark.parametrize("family", ["beta", "gaussian"])
def test_unbounded_actions_are_refused(family):
    with pytest.raises(ValueError, match="continuous actions must be bounded on both sides"):
        head(Box((2,), -np.inf, 1.0), family)
