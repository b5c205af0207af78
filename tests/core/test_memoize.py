"""Memoised functions of observations."""

import numpy as np
import pytest

from coterie.core import memoize
from coterie.core.memoize import Memoized, row_keys


@pytest.fixture
def asked():
    return []


def test_equal_observations_are_looked_at_once_and_in_order(asked):
    kept = Memoized(lambda seen, tags: asked.append(seen.tolist()) or [f"at {x:g}" for x in seen[:, 0]])
    rows = np.array([[2.0, 0], [1, 0], [2, 0], [3, 0]])
    assert kept.of(rows) == ["at 2", "at 1", "at 2", "at 3"]
    assert kept.of(rows[::-1]) == ["at 3", "at 2", "at 1", "at 2"]
    assert kept.of(np.array([[2.0, 1]])) == ["at 2"]  # shows another thing
    assert kept.of(rows[:0]) == []
    assert asked == [[[2, 0], [1, 0], [3, 0]], [[2, 1]]]


def test_what_is_turned_down_is_given_but_not_kept(asked):
    kept = Memoized(lambda seen, tags: asked.append(seen.tolist()) or seen.tolist(), lambda found: found > 0)
    rows = np.array([-1, 1, -1])
    assert kept.of(rows) == kept.of(rows) == [-1, 1, -1]
    assert asked == [[-1, 1], [-1]]


def test_what_is_kept_has_an_end(asked, monkeypatch):
    monkeypatch.setattr(memoize, "CAPACITY", 2)
    kept = Memoized(lambda seen, tags: asked.append(len(seen)) or seen.tolist())
    for rows in ([1, 2, 3], [1, 4], [4, 1]):
        assert kept.of(np.array(rows)) == rows
    assert asked == [3, 2]  # more than two were kept, so all are found anew; two are not too many


def test_every_entry_counts_and_so_do_tags():
    tree = {"x": np.array([[1, 2], [1, 2], [1, 2], [3, 2]], np.int8), "y": np.array([0, 1, 0, 0], np.float32)}
    tree["nothing"] = np.zeros((4, 0))
    tags = np.array([0, 0, 1, 0])
    assert len(set(row_keys(tree, tags))) == 4
    assert len(set(row_keys(tree, tags * 0))) == 3
    assert row_keys(np.zeros((0, 2)), tags[:0]) == []
