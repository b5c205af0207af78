"""Next observations of decisions, and memoised values."""

import numpy as np

from coterie.advice.shaping import END, OPEN, MemoizedValues, next_observations, observations_at
from coterie.core.types import Finals
from helpers.small_worlds import experience


def test_idle_ticks_are_stepped_over():
    own = experience(np.zeros((4, 2)), active=[[1, 0], [0, 1], [1, 0], [0, 1]], acting=[True, False])
    found = next_observations(own)
    assert found.at[:, 0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.next[own.active].tolist() == [4, 7, 8, OPEN]  # row 2, row 3, row 4, not yet
    assert not found.last[own.closed()].any()


def test_true_ends_are_distinguished_from_cuts():
    final = Finals(np.array([[2, 0]]), np.full((1, 2, 3), 7.0, np.float32))
    own = experience(
        np.zeros((4, 2)),
        active=[[1, 0], [0, 1], [0, 0], [1, 1]],
        terminated=[(2, 1)],
        truncated=[(2, 0)],
        finals=final,
    )
    found = next_observations(own)
    assert found.next[own.active].tolist() == [10, END, 8, 9]  # the last observation of the cut copy is behind all rows
    assert found.last[own.active].tolist() == [True, True, False, False]
    assert (observations_at(own, np.array([10])) == 7).all()


def test_who_is_cut_alone_saw_the_next_row():
    own = experience(np.zeros((2, 2)), truncated=[(0, 0)])
    assert next_observations(own).next[0, 0].tolist() == [2, 3]


def test_equal_rows_are_valued_once():
    asked = []

    def value(observation, tags):
        asked.append((observation["x"].tolist(), tags.tolist()))
        return np.where(observation["x"] < 0, np.nan, 10.0 * observation["x"] + tags)

    kept = MemoizedValues(value)
    rows = {"x": np.array([2, -1, 2, 3, 3]), "y": np.zeros((5, 2), np.float32)}
    np.testing.assert_array_equal(kept.of(rows, np.array([0, 0, 0, 0, 1])), [20, np.nan, 20, 30, 31])
    assert asked == [([2, -1, 3, 3], [0, 0, 0, 1])]
    kept.of(rows)
    assert asked[1:] == [([-1], [0])]  # only what had no value is asked again
    rows["y"][0, 1] = 1
    kept.of(rows)
    assert asked[2:] == [([2, -1], [0, 0])]
