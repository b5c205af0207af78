"""Batches: rows of every field stay together, each stack's apart."""

import numpy as np
import pytest
import torch

from coterie.algorithms.ppo.minibatches import Batch, flatten_sequences, minibatches, shuffle, take, to_device
from coterie.nn import networks

CPU = torch.device("cpu")


def batch(parameter_sets, rows, steps=None, masked=True):
    """Every field of row m of stack s (at step t) holds 100·s + 10·m + t."""
    lead = (parameter_sets, rows) if steps is None else (parameter_sets, rows, steps)
    number = np.zeros(lead, np.float32)
    for at in np.ndindex(lead):
        number[at] = 100 * at[0] + 10 * at[1] + (at[2] if steps else 0)
    wide = np.repeat(number[..., None], 3, axis=-1)
    past = None
    if steps is not None:
        past = networks.Sequences(wide[:, :, 0], number > 0, number > 50)
    return Batch(wide, wide + 0.5, number.astype(int), wide > 5 if masked else None, *[number] * 6, past, wide - 7)


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("parameter_sets", [1, 3])
def test_picked_rows_are_whole(parameter_sets, steps):
    whole = batch(parameter_sets, 6, steps)
    index = np.array([[5, 0, 2], [1, 1, 4], [3, 2, 5]])[:parameter_sets]
    picked = take(whole, index)
    for s, k in np.ndindex(index.shape):
        for name, array in whole._asdict().items():
            if name != "sequences":
                assert np.array_equal(getattr(picked, name)[s, k], array[s, index[s, k]]), name
        for mine, theirs in zip(picked.sequences or (), whole.sequences or (), strict=True):
            assert np.array_equal(mine[s, k], theirs[s, index[s, k]])


def test_a_mask_that_is_not_there_stays_away():
    assert take(batch(2, 4, masked=False), np.zeros((2, 3), int)).mask is None
    assert to_device(batch(2, 4, masked=False), CPU).mask is None
    assert flatten_sequences(batch(2, 4, 3, masked=False)).mask is None


def test_minibatches_are_cut_at_the_given_rows():
    cuts = [[np.array([4, 2]), np.array([1, 3, 0])], [np.array([1])], []]
    parts = list(minibatches(batch(3, 5), cuts))
    assert [part.log_prob.shape for part, _ in parts] == [(3, 2), (3, 3)]
    assert [learning.tolist() for _, learning in parts] == [[0, 1], [0]]
    assert parts[0][0].log_prob[:2].tolist() == [[40, 20], [110, 100]]
    assert parts[0][0].weight.tolist() == [[40, 20], [110, 0], [0, 0]]  # the shorter one is padded
    assert parts[1][0].weight.tolist() == [[10, 30, 0], [0] * 3, [0] * 3]


def test_every_parameter_set_is_cut_for_its_own_rows():
    cuts = shuffle(np.array([7, 2, 0]), 4, np.random.default_rng(0))
    assert [[len(rows) for rows in mine] for mine in cuts] == [[2, 2, 2, 1], [1, 1], []]
    assert [sorted(np.concatenate(mine).tolist()) for mine in cuts[:2]] == [list(range(7)), [0, 1]]


def test_sequences_are_laid_end_to_end_for_autograd():
    whole = batch(2, 3, steps=4)
    rows = flatten_sequences(to_device(whole, CPU))
    assert rows.critic_input.shape == (2, 12, 3)
    assert rows.mask.shape == (2, 12, 3)
    assert rows.weight[1].tolist() == [100 + 10 * i + t for i in range(3) for t in range(4)]
    flat = flatten_sequences(batch(2, 3))
    assert flat.action.tolist() == batch(2, 3).action.tolist()
