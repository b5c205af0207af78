"""The squashed Gaussian policy: exact densities for any box, both paths equal, greedy play without noise."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import integrate

from coterie.core.types import Box
from coterie.nn import kernels
from coterie.testing.sampling import decide, random_view
from helpers.sac import BOX, gaussian
from helpers.small_worlds import generator, group_spec

FAR = Box((2,), np.array([3.0, -7.0], np.float32), np.array([3.5, 20.0], np.float32))  # without 0, uneven


def loud(where, **fields):
    """A policy whose outputs differ from row to row."""
    policy = gaussian(where, **fields)
    policy.net.out.weight.data *= 40
    return policy


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("space", [BOX, FAR])
def test_log_densities_are_those_of_the_box(space, parameters):
    where = group_spec(space, parameters=parameters)
    fast, slow = (loud(where, compiled=compiled) for compiled in (True, False))
    view = random_view(where, generator(), False, 0)
    found, again = decide(fast, view, 1), decide(slow, view, 1)
    assert np.abs(found.action - again.action).max() < 1e-5
    assert np.abs(found.log_prob - again.log_prob).max() < 1e-4
    out = torch.from_numpy(slow.forward(slow.pack(view.observation), view)[0]).double()
    mean, log_std = out.chunk(2, dim=-1)
    low, high = (torch.from_numpy(np.broadcast_to(bound, (2,)).astype(float)) for bound in (space.low, space.high))
    to_box = [
        torch.distributions.TanhTransform(),
        torch.distributions.AffineTransform((low + high) / 2, (high - low) / 2),
    ]
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    expected = torch.distributions.TransformedDistribution(normal, to_box).log_prob(
        torch.from_numpy(found.action).double()
    )
    assert found.log_prob == pytest.approx(expected.sum(-1).numpy(), abs=2e-3)
    assert (found.action >= space.low).all()
    assert (found.action <= space.high).all()


def test_densities_sum_to_one():
    def density(point, mean, log_std):
        z = np.arctanh(point)
        out = np.array([[mean, log_std]], np.float32)
        noise = np.array([[(z - mean) / np.exp(log_std)]], np.float32)
        action, log_prob = np.empty((1, 1), np.float32), np.empty(1, np.float32)
        kernels.sample_squashed.over(len(out), out, noise, action, log_prob)
        assert action[0, 0] == pytest.approx(point, abs=1e-5)
        return float(np.exp(log_prob[0]))

    for mean, log_std in ((0.0, 0.0), (0.7, -1.0), (-1.0, 0.5)):
        assert integrate.quad(density, -1, 1, (mean, log_std), epsabs=1e-4, epsrel=1e-4)[0] == pytest.approx(
            1, abs=1e-3
        )


def test_extreme_outputs_give_finite_numbers_and_bounded_deviations():
    out = np.array([[40.0, 9.0], [-40.0, -30.0], [0.0, 9.0]], np.float32)
    noise = np.ones((3, 1), np.float32)
    action, log_prob = np.empty((3, 1), np.float32), np.empty(3, np.float32)
    kernels.sample_squashed.over(len(out), out, noise, action, log_prob)
    assert np.isfinite(log_prob).all()
    assert action[2, 0] == pytest.approx(np.tanh(np.exp(2)))
    slopes, ones = np.empty_like(out), np.ones(3, np.float32)
    kernels.squashed_slopes.over(3, out, noise, action, ones[:, None], ones, slopes)
    assert np.isfinite(slopes).all()
    assert not slopes[:, 1].any()  # outside the bounds of deviations


def test_greedy_play_has_no_noise():
    where = group_spec(FAR)
    policy = loud(where)
    view = random_view(where, generator(), False, 0)
    greedy = [decide(policy, view, seed, greedy=True).action for seed in (1, 2)]
    assert np.array_equal(*greedy)
    assert not np.array_equal(greedy[0], decide(policy, view, 1).action)
    mean = policy.forward(policy.pack(view.observation), view)[0][..., :2]
    assert greedy[0] == pytest.approx(policy.box.stretch(np.tanh(mean)), abs=1e-4)
    some = dataclasses.replace(view, agents=view.agents[::-1].copy())
    assert decide(policy, some, 1).action.shape == greedy[0].shape
