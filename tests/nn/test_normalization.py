"""Running means and deviations of observations and of returns."""

import numpy as np
import pytest

from coterie.core.types import Box, Dict
from coterie.nn.normalization import Normalizer, RunningMoments
from coterie.nn.packing import layout
from helpers.small_worlds import generator


def normalizer(space, parameter_sets=1, enabled=True):
    lay = layout(space)
    return Normalizer(lay.slots, lay.width, parameter_sets, enabled)


def vector(size):
    return Box((size,), -1.0, 1.0)


def seen(num_envs=6, size=3, seed=0):
    return generator(seed).standard_normal((num_envs, size), np.float32)


# Observations ------------------------------------------------------------------------------------------


def test_moments_equal_numpys_over_all_batches_together():
    one = normalizer(vector(3), parameter_sets=2)
    batches = [generator(i).standard_normal((2, 5 + 7 * i, 3), np.float32) * 3 + 2 for i in range(4)]
    for batch in batches:
        one.update(list(batch))
    both = np.concatenate(batches, axis=1).astype(np.float64)
    assert np.allclose(one.mean, both.mean(axis=1))
    assert np.allclose(one.variance, both.var(axis=1))
    x = batches[0]
    expected = (x - both.mean(1, keepdims=True)) / np.sqrt(both.var(1, keepdims=True) + 1e-8)
    assert np.allclose(one(x), expected.clip(-10, 10), atol=1e-5)


def test_stacks_of_unequal_size_keep_their_own_moments():
    one = normalizer(vector(3), parameter_sets=3)
    parts = [
        [generator(10 * i + j).standard_normal((count, 3)) + j for j, count in enumerate((4, 9, 0))] for i in range(2)
    ]
    for part in parts:
        one.update(part)
    for stack in (0, 1):
        together = np.concatenate([part[stack] for part in parts])
        assert np.allclose(one.mean[stack], together.mean(0))
        assert np.allclose(one.variance[stack], together.var(0))
    x = generator().standard_normal((3, 2, 3), np.float32)
    assert np.allclose(one(x)[2], x[2])  # nothing is known of the third yet
    assert one.count.tolist() == [8, 18, 0]


def test_rows_of_a_set_share_their_moments():
    one = normalizer(Dict({"own": Box((1,), 0.0, 1.0), "at": Box((4, 2), 0.0, 1.0)}, (("at",),)))
    rows = generator().standard_normal((1, 20, 9), np.float32)
    rows[..., 3:5] += 5  # one of the four things is elsewhere
    one.update(list(rows))
    at = rows[0, :, 1:].reshape(-1, 2).astype(np.float64)
    assert np.allclose(one.mean[0], [rows[0, :, 0].mean(), *at.mean(0)], atol=1e-6)
    assert np.allclose(one.variance[0, 1:], at.var(0))


def test_an_empty_set_teaches_nothing_about_its_rows():
    one = normalizer(Dict({"at": Box((0, 2), 0.0, 1.0), "own": Box((1,), 0.0, 1.0)}, (("at",),)))
    one.update([np.full((5, 1), 3.0)])
    assert one.mean.tolist() == [[0, 0, 3]]
    assert one.variance.tolist() == [[1, 1, 0]]


def test_before_any_update_and_when_off_rows_pass_unchanged():
    x = np.full((1, 2, 3), 50.0, np.float32)
    fresh, off = normalizer(vector(3)), normalizer(vector(3), enabled=False)
    off.update([np.ones((4, 3))])
    assert np.array_equal(fresh(x), x)
    assert np.array_equal(off(x), x)
    assert off.count.tolist() == [0]


def test_outliers_are_held_at_10_and_constants_do_no_harm():
    one = normalizer(vector(2))
    one.update([np.stack([np.full(50, 0.25), generator().standard_normal(50)], axis=1)])
    out = one(np.array([[[0.25, 1e6]]], np.float32))
    assert out.tolist() == [[[0, 10]]]


def test_a_saved_state_is_not_touched_by_later_updates():
    one = normalizer(vector(3))
    one.update([seen()])
    state = one.state()
    kept = {name: np.array(value) for name, value in state.items()}
    one.update([seen(seed=1) + 9])
    assert all(np.array_equal(kept[name], state[name]) for name in kept)
    one.load(state)
    assert np.array_equal(one.mean, kept["mean"])


@pytest.mark.parametrize("value", [1e7 / 3, 123456.789, -4e5 / 7])
def test_a_large_constant_is_no_negative_variance(value):
    one = normalizer(vector(1))
    for count in (1000, 777, 3):
        one.update([np.full((count, 1), value, np.float32)])
        assert (one.variance >= 0).all()
        assert np.abs(one(np.full((1, 1, 1), value, np.float32))).max() <= 10


def test_what_is_no_number_stays_none():
    one = normalizer(vector(3))
    x = np.array([[[np.nan, np.inf, -np.inf]]], np.float32)
    assert np.isnan(one(x)[0, 0, 0])
    one.update([seen()])
    assert np.isnan(one(x)[0, 0, 0])
    assert one(x)[0, 0, 1:].tolist() == [10, -10]


# Returns -----------------------------------------------------------------------------------------------


def test_running_moments_equal_numpys():
    one = RunningMoments(2)
    parts = [generator(i).standard_normal((2, 4 + 5 * i)) * 5 + 3 for i in range(3)]
    for part in parts:
        one.update(part, np.ones(part.shape))
    both = np.concatenate(parts, axis=1)
    assert np.allclose(one.mean[:, 0], both.mean(1))
    assert np.allclose(one.variance[:, 0], both.var(1))
    padded = RunningMoments(2)
    padded.update(np.array([[1.0, 3.0, 99.0], [9.0, 9.0, 9.0]]), np.array([[1, 1, 0], [0, 0, 0]]))
    assert padded.mean.tolist() == [[2], [0]]
    assert padded.variance.tolist() == [[1], [1]]
    assert padded.scale[:, 0].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert RunningMoments(1).scale.item() == 1
    padded.update(np.full((2, 3), 7.0), np.array([[0, 0, 0], [1, 1, 1]]))
    assert padded.scale[:, 0].tolist() == pytest.approx([1, 0.01])  # of what never changes: not 0


def test_saved_moments_are_not_touched_by_later_updates():
    one, other = RunningMoments(1), RunningMoments(1)
    one.update(np.array([[1.0, 5.0]]), np.ones((1, 2)))
    state = one.state()
    one.update(np.array([[70.0]]), np.ones((1, 1)))
    other.load(state)
    assert (other.shift.item(), other.scale.item()) == pytest.approx((3, 2))
