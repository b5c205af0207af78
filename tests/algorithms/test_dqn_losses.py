"""DQN's loss: values and slopes against PyTorch's Huber loss."""

import numpy as np
import pytest
import torch

from coterie.algorithms.dqn.losses import td_losses
from helpers.small_worlds import generator


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
