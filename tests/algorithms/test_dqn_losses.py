"""DQN's losses: values and slopes against PyTorch."""

import numpy as np
import pytest
import torch

from coterie.algorithms.dqn import losses
from helpers.small_worlds import generator


def td_losses(value, target, weight, delta):
    """Errors, losses and slopes `[S, B]` of values against rewards, with nothing to follow."""
    rows, count = value.size, value.shape[1]
    error, slopes, terms = np.empty(rows, np.float32), np.empty(rows, np.float32), np.empty((rows, 4))
    nothing, given = np.zeros(rows, np.float32), [part.reshape(-1) for part in (value, target, weight)]
    losses.td_losses.over(
        rows, given[0], nothing, given[1], nothing, given[2], count, float(delta), error, slopes, terms
    )
    assert np.allclose(terms[:, 1] * count, given[0], equal_nan=True, atol=1e-6)
    assert np.allclose(terms[:, 2] * count, np.abs(error), equal_nan=True, atol=1e-6)
    loss = terms[:, 0] * count / given[2]
    return [part.reshape(value.shape) for part in (error, loss, slopes)]


def margin_losses(values, legal, advised, weight, margin):
    """Losses `[R]` and slopes `[R, K]` of values, weighted and summed."""
    rows = len(values)
    slopes, terms = np.zeros_like(values), np.zeros((rows, 4))
    losses.margin_losses.over(
        rows, values, np.arange(rows)[:, None], np.ones((rows, 1), bool), advised[:, None], legal[:, None], weight,
        1, float(margin), 1.0, 0, slopes, terms,
    )  # fmt: skip
    return terms[:, 3] / weight, slopes


@pytest.mark.parametrize("delta", [1.0, 0.3, np.inf])
def test_the_loss_and_its_slopes_are_those_of_the_weighted_huber_loss(delta):
    value, target = (generator(i).standard_normal((2, 32)).astype(np.float32) * 2 for i in range(2))
    weight = generator(2).random((2, 32)).astype(np.float32)
    error, loss, slope = td_losses(value, target, weight, delta)

    said = torch.from_numpy(value).requires_grad_()
    each = torch.nn.functional.huber_loss(said, torch.from_numpy(target), reduction="none", delta=delta)
    (torch.from_numpy(weight) * each).mean(dim=1).sum().backward()
    assert np.array_equal(error, value - target)
    assert np.allclose(loss, each.detach().numpy(), atol=1e-6)
    assert np.allclose(slope, said.grad.numpy(), atol=1e-8)


def test_what_is_no_number_stays_so():
    value = np.array([[np.nan, 1.0]], np.float32)
    error, _, slope = td_losses(value, np.zeros_like(value), np.ones_like(value), 1.0)
    assert np.isnan(error[0, 0])
    assert np.isnan(slope[0, 0])
    assert slope[0, 1] == 0.5


def test_the_margin_loss_by_hand():
    """Hester et al. 2018: max_a [Q(s, a) + margin where a is not advised] − Q(s, advised)."""
    values = np.array([[1.0, 0.5, 0.9], [1.0, 0.0, 0.1], [0.2, 0.7, 0.6], [0.0, 9.0, 0.0]], np.float32)
    weight = np.array([1.0, 1.0, 0.5, 1.0], np.float32)
    loss, slope = margin_losses(values, np.ones((4, 3), bool), np.array([0, 0, 0, -1]), weight, np.float32(0.3))
    assert loss == pytest.approx([0.2, 0.0, 0.8, 0.0])
    np.testing.assert_array_equal(slope, [[-1, 0, 1], [0, 0, 0], [-0.5, 0.5, 0], [0, 0, 0]])


def test_the_margin_loss_leaves_out_illegal_actions():
    """Nobody can play them, so their values may be anything: the legal action that comes too close is pushed down."""
    values = np.array([[1.0, 0.9, 5.0], [1.0, 0.0, 5.0]], np.float32)
    legal = np.array([[True, True, False]] * 2)
    loss, slope = margin_losses(values, legal, np.array([0, 0]), np.ones(2, np.float32), np.float32(0.3))
    assert loss == pytest.approx([0.2, 0.0])
    np.testing.assert_array_equal(slope, [[-1, 1, 0], [0, 0, 0]])


def test_the_margin_loss_and_its_slopes_are_those_of_autograd():
    values, weight = generator(0).standard_normal((200, 5)).astype(np.float32), generator(1).random(200, np.float32)
    advised = generator(2).integers(-1, 5, 200)
    legal = generator(3).random((200, 5)) < 0.7
    legal[np.arange(200), advised] = True
    loss, slope = margin_losses(values, legal, advised, weight, np.float32(0.8))
    given, said = np.flatnonzero(advised >= 0), torch.from_numpy(values).requires_grad_()
    best = torch.from_numpy(advised[given])[:, None]
    others = (said[given] + 0.8 * (torch.arange(5) != best)).masked_fill(~torch.from_numpy(legal[given]), -torch.inf)
    each = others.max(dim=1).values - said[given].gather(1, best)[:, 0]
    (torch.from_numpy(weight[given]) * each).sum().backward()
    assert np.allclose(loss[given], each.detach().numpy(), atol=1e-6)
    assert not loss[advised < 0].any()
    assert np.allclose(slope, said.grad.numpy(), atol=1e-6)
