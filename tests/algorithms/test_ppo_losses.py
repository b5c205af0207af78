"""PPO's losses: values and slopes against PyTorch's autograd on the formulas."""

import numpy as np
import pytest
import torch

from coterie.algorithms.ppo import losses
from helpers.small_worlds import generator


def weighed(weight, advantage, wanted):
    """Weights and advantages of one minibatch of all rows."""
    rows, found = len(weight), (np.empty_like(weight), np.empty_like(weight))
    losses.weigh.over(1, weight, advantage, np.arange(rows), np.array([rows]), np.array([[rows]]), wanted, *found)
    return found


def policy_losses(log_prob, entropy, old, importance, advantage, weight, wanted):
    """Slopes by log-probabilities and entropies, and totals, with the clip 0.2 and the bonus 0.03."""
    rows, (weight, advantage) = np.arange(len(weight)), weighed(weight, advantage, wanted)
    slopes, terms = np.empty((2, len(rows)), np.float32), np.zeros((len(rows), len(losses.NAMES)), np.float32)
    numbers = (log_prob, entropy, rows, weight, advantage, old, importance, 0.2, 0.03, *slopes, terms)
    losses.policy_losses.over(len(rows), *numbers)
    return *slopes, totals(terms)


def totals(terms):
    found, rows = np.zeros((1, len(losses.NAMES))), len(terms)
    losses.add_up.over(1, terms, np.array([rows]), np.array([[rows]]), found, np.zeros(1))
    return found[0]


def numbers(count, rows=200, seed=0):
    return [generator(seed + i).standard_normal(rows).astype(np.float32) for i in range(count)]


@pytest.mark.parametrize("normalized", [True, False])
def test_the_policy_loss_and_its_slopes_are_those_of_the_formula(normalized):
    log_prob, entropy, noise, advantage, apart = numbers(5)
    importance = np.exp(apart)  # of actions drawn from another distribution
    weight = (generator(9).random(200) < 0.8).astype(np.float32)
    old = log_prob + 0.3 * noise
    rows = (log_prob, entropy, old, importance, advantage, weight)
    found = policy_losses(*rows, normalized)

    said = [torch.from_numpy(array).requires_grad_() for array in (log_prob, entropy)]
    share, gain = torch.from_numpy(weight / weight.sum()), torch.from_numpy(advantage)
    if normalized:
        mean = (share * gain).sum()
        gain = (gain - mean) / ((share * (gain - mean) ** 2).sum().sqrt() + 1e-8)
    ratio = (said[0] - torch.from_numpy(old)).exp()
    drawn = share * torch.from_numpy(importance)
    objective = (drawn * torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)).sum()
    loss = -objective - 0.03 * (share * said[1]).sum()
    loss.backward()
    assert np.allclose(found[0], said[0].grad.numpy(), atol=1e-7)
    assert np.allclose(found[1], said[1].grad.numpy(), atol=1e-7)
    kl = (drawn * (ratio - 1 - ratio.log())).sum()
    outside = (share * ((ratio - 1).abs() > 0.2)).sum()
    expected = [-objective.item(), 0.0, (share * said[1]).sum().item(), kl.item(), outside.item()]
    assert found[2].tolist() == pytest.approx(expected, abs=1e-6)
    assert 0 < outside < 1


@pytest.mark.parametrize("limit", [0.0, 0.4])
def test_the_value_loss_and_its_slopes_are_those_of_the_formula(limit):
    value, old, target = numbers(3)
    weight = (generator(9).random(200) < 0.8).astype(np.float32)
    rows, share = np.arange(200), weighed(weight, weight, False)[0]
    slopes, terms = np.empty(200, np.float32), np.zeros((200, len(losses.NAMES)), np.float32)
    losses.value_losses.over(200, value, rows, share, old, target, np.full(200, limit, np.float32), slopes, terms)

    said, before, aim = torch.from_numpy(value).requires_grad_(), torch.from_numpy(old), torch.from_numpy(target)
    error = (said - aim) ** 2
    if limit:
        error = torch.maximum(error, (before + (said - before).clamp(-limit, limit) - aim) ** 2)
    loss = 0.5 * (torch.from_numpy(weight / weight.sum()) * error).sum()
    loss.backward()
    assert np.allclose(slopes, said.grad.numpy(), atol=1e-7)
    assert totals(terms).tolist() == pytest.approx([0, loss.item(), 0, 0, 0], abs=1e-6)


def test_padding_has_no_slope_whatever_it_holds():
    log_prob, entropy, old, importance, advantage = numbers(5, rows=5)
    weight = np.array([1, 0, 1, 1, 0], np.float32)
    rows = (log_prob, entropy, old, importance, advantage, weight, False)
    plain = policy_losses(*rows)
    for array in (log_prob, entropy, old, importance):
        array[weight == 0] = np.nan
    again = policy_losses(*rows)
    for mine, theirs in zip(plain, again, strict=True):
        assert np.array_equal(mine, theirs)
    assert again[0][[1, 4]].tolist() == [0, 0]


def test_padding_alone_weighs_nothing():
    weight, advantage = weighed(np.zeros(3, np.float32), np.ones(3, np.float32), True)
    assert weight.tolist() == [0, 0, 0]
    assert np.isfinite(advantage).all()


def test_totals_are_those_of_each_parameter_set_and_the_latest_minibatch():
    terms = np.arange(40, dtype=np.float32).reshape(8, 5)
    ends, counts = np.array([4, 8]), np.array([[2, 1], [2, 0]])  # of two rows each, the rest is padding
    found, kl = np.zeros((2, 5)), np.zeros(2)
    losses.add_up.over(2, terms, ends, counts, found, kl)
    assert np.array_equal(found[0], terms[[0, 1, 4, 5]].sum(axis=0))
    assert np.array_equal(found[1], terms[2])
    assert kl.tolist() == [terms[4, 3] + terms[5, 3], terms[2, 3]]
