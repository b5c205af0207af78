"""Batches: rows of every field stay together, each stack's apart."""

import numpy as np
import pytest

from coterie.algorithms.ppo.minibatches import Batch, Cut, lay_out, make_pass, pieces, shuffle, take
from coterie.core.types import Discrete
from coterie.nn import networks
from coterie.nn.distributions import head


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
    assert laid_out(batch(2, 4, masked=False)).taken.mask.shape == (1, 0)  # everything is legal


def laid_out(whole):
    weight = (whole.weight >= 0).astype(np.float32)
    return lay_out(whole._replace(weight=weight, advice=None), head(Discrete(3), "beta"), None, np.zeros(len(weight)))


def cut(*parts):
    """The rows of one parameter set, minibatch after minibatch."""
    order = [row for part in parts for row in part]
    return Cut(np.array(order, np.int64), np.cumsum([len(part) for part in parts]).tolist())


def test_minibatches_are_cut_at_the_given_rows():
    whole = batch(3, 5)
    decisions = laid_out(whole)
    found = make_pass(whole, decisions, [cut([4, 2], [1, 3, 0]), cut([1]), cut()], False)
    first, second = found.minibatches
    assert first.items.tolist() == [[4, 2], [1, 0], [0, 0]]
    assert decisions.log_prob[first.places].tolist() == [40, 20, 110, 100, 200, 200]
    assert first.weight.tolist() == [0.5, 0.5, 1, 0, 0, 0]  # the shorter one is padded
    assert decisions.log_prob[second.places].reshape(3, 3)[0].tolist() == [10, 30, 0]
    assert second.weight.tolist() == pytest.approx([1 / 3] * 3 + [0] * 6)
    assert [part.learning.tolist() for part in found.minibatches] == [[0, 1], [0]]
    assert found.counts.tolist() == [[2, 1, 0], [3, 0, 0]]
    assert found.ends.tolist() == [6, 15]


def test_advantages_are_normalised_in_every_minibatch_of_its_own():
    whole = batch(2, 6)
    found = make_pass(whole, laid_out(whole), [cut([0, 5], [1, 2, 4]), cut([3, 1, 2])], True)
    for part in found.minibatches:
        rows = zip(*(a.reshape(2, -1) for a in (part.weight, part.advantage)), strict=True)
        for weight, advantage in [row for row in rows if row[0].any()]:
            mine = advantage[weight > 0]
            assert mine.mean() == pytest.approx(0, abs=1e-6)
            assert mine.std() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("parameter_sets", [1, 2])
def test_decisions_of_sequences_are_laid_end_to_end(parameter_sets):
    whole = batch(parameter_sets, 3, steps=4)
    decisions = laid_out(whole)
    (part,) = make_pass(whole, decisions, [cut([2, 0])] * parameter_sets, False).minibatches
    assert part.items.tolist() == [[2, 0]] * parameter_sets
    said = [100 * s + 10 * m + t for s in range(parameter_sets) for m in (2, 0) for t in range(4)]
    assert decisions.target[part.places].tolist() == said
    assert part.rows.shape == (parameter_sets, 8)
    assert list(pieces(part, 1)) == [part]  # sequences stay whole


@pytest.mark.parametrize("parameter_sets", [1, 3])
def test_pieces_are_the_minibatch(parameter_sets):
    whole = batch(parameter_sets, 7)
    (part,) = make_pass(whole, laid_out(whole), [cut(range(7))] * parameter_sets, True).minibatches
    part.terms[:] = 0
    found = []
    for piece in pieces(part, 3):
        piece.terms[:] = piece.places[:, None]
        found.append(piece)
    assert [piece.items.shape[1] for piece in found] == [3, 3, 1]
    for name in ("places", "weight", "advantage"):
        parts = [getattr(piece, name).reshape(parameter_sets, -1) for piece in found]
        assert np.array_equal(np.concatenate(parts, axis=1).reshape(-1), getattr(part, name))
    assert np.array_equal(part.terms[:, 0], part.places)  # what is written to a piece is written to the minibatch


def test_every_parameter_set_is_cut_for_its_own_rows():
    cuts = shuffle(np.array([7, 2, 0]), 4, np.random.default_rng(0))
    assert [mine.ends for mine in cuts] == [[2, 4, 6, 7], [1, 2], []]
    assert [sorted(mine.order.tolist()) for mine in cuts] == [list(range(7)), [0, 1], []]
