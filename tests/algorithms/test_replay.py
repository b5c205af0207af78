"""The replay: a ring against a list, its sum tree against brute force, draws against their probabilities."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms.replay import SMALL, Replay, ReplaySettings, find_leaves, set_leaves
from helpers.small_worlds import generator


class Rows(NamedTuple):
    number: np.ndarray  # [R]
    seen: np.ndarray  # [R, 2]


def rows(*numbers):
    number = np.array(numbers, np.int64)
    return Rows(number, np.stack([number, -number], axis=-1).astype(np.float32))


def make(size=5, priority=1.0, learning_starts=1, **fields):
    return Replay(ReplaySettings(size, learning_starts, priority, **fields), rows())


def filled(*numbers, **fields):
    replay = make(**fields)
    replay.add(rows(*numbers))
    return replay


def held(replay):
    assert np.array_equal(replay.rows.seen[:, 0], replay.rows.number)  # columns stay side by side
    return replay.rows.number[: replay.size].tolist()


def leaves(replay):
    return replay.nodes[len(replay.nodes) // 2 :]


# The ring ----------------------------------------------------------------------------------------------


def test_the_oldest_rows_are_written_over():
    replay = make(size=5)
    for numbers, after in [((1, 2, 3), [1, 2, 3]), ((4, 5, 6), [6, 2, 3, 4, 5]), ((7,), [6, 7, 3, 4, 5])]:
        replay.add(rows(*numbers))
        assert held(replay) == after
    replay.add(rows())
    assert held(replay) == [6, 7, 3, 4, 5]


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("priority", [0.0, 0.6])
def test_the_latest_rows_are_kept_however_they_come(size, priority):
    random, replay, all_of_them = generator(size), make(size=size, priority=priority), []
    for _ in range(12):
        new = list(range(len(all_of_them), len(all_of_them) + random.integers(0, 2 * size + 2)))
        all_of_them += new
        replay.add(rows(*new))
        assert sorted(held(replay)) == all_of_them[-size:]
        assert replay.size == min(len(all_of_them), size)
        if all_of_them:
            assert replay.rows.number[(replay.position - 1) % size] == all_of_them[-1]


def test_more_rows_than_there_is_room_for():
    replay = filled(1, 2, size=3)
    replay.add(rows(*range(10, 18)))
    assert sorted(held(replay)) == [15, 16, 17]
    replay.add(rows(18))
    assert sorted(held(replay)) == [16, 17, 18]


def test_learning_may_start_with_enough_rows():
    replay = make(size=5, learning_starts=3)
    assert not replay.ready
    replay.add(rows(1, 2))
    assert not replay.ready
    replay.add(rows(3))
    assert replay.ready


# The tree ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 37),
    updates=st.lists(
        st.lists(st.tuples(st.integers(0, 36), st.floats(0, 1e6, allow_subnormal=False)), min_size=1, max_size=8),
        max_size=6,
    ),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=9),
)
def test_the_tree_finds_what_a_cumulative_search_finds(size, updates, draws):
    base = 1 << (size - 1).bit_length()
    nodes, plain = np.zeros(2 * base), np.zeros(base)
    start = np.ones(size)
    set_leaves(nodes, np.arange(size), start)
    plain[:size] = start
    for update in updates:
        unique = {index % size: value for index, value in update}
        index, value = np.array([*unique], np.int64), np.array([*unique.values()])
        set_leaves(nodes, index, value)
        plain[index] = value
    assert np.array_equal(nodes[base:], plain)
    for k in range(1, base):
        assert nodes[k] == nodes[2 * k] + nodes[2 * k + 1]
    if nodes[1] == 0:
        return
    found = np.empty(len(draws), np.int64)
    find_leaves(nodes, np.array(draws), found)
    sums = np.cumsum(plain)
    for i, u in enumerate(draws):
        assert 0 <= found[i] < size
        assert plain[found[i]] > 0
        aim, slack = (i + u) / len(draws) * nodes[1], 1e-9 * nodes[1]
        exact = int(np.searchsorted(sums, aim, side="right"))
        near = sums[found[i]] >= aim - slack and sums[found[i]] - plain[found[i]] <= aim + slack
        assert found[i] == exact or near  # two leaves are as good where the aim lies between them


def test_small_whole_numbers_by_hand():
    replay = filled(0, 1, 2, 3, 4)
    set_leaves(replay.nodes, np.arange(5), np.array([1.0, 0.0, 2.0, 4.0, 1.0]))
    assert replay.nodes[1] == 8
    found = replay.sample(np.zeros(8)).rows  # one draw at 0, 1, …, 7 of 8
    assert found.tolist() == [0, 2, 2, 3, 3, 3, 3, 4]


def test_draws_are_stratified():
    replay = filled(*range(64), size=64)
    found = replay.sample(generator().random(64)).rows
    assert sorted(found.tolist()) == list(range(64))  # equal priorities: one draw from each row
    replay = filled(*range(8), size=8)
    assert (replay.sample(generator().random(4)).rows // 2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 3, 5, 11])
def test_rows_never_written_are_never_drawn(size):
    replay = make(size=2 * size)
    replay.add(rows(*range(size)))
    edge = np.nextafter(1.0, 0.0)
    for uniform in (generator().random(500), np.full(500, edge), np.zeros(500)):
        assert replay.sample(uniform).rows.max() < size
    assert replay.sample(np.array([edge])).rows.tolist() == [size - 1]


def test_a_replay_of_one_row():
    replay = filled(1, 2, 3, size=1)
    drawn = replay.sample(generator().random(4), 0.5)
    assert drawn.rows.tolist() == [0] * 4
    assert drawn.weight.tolist() == [1] * 4
    replay.prioritise(np.array([0]), np.array([9.0]))
    assert replay.nodes[1] == 9 + SMALL


# Priorities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0.0, 0.5, 1.0])
def test_rows_are_drawn_as_often_as_their_priorities_say(priority):
    replay = filled(*range(5), size=7, priority=priority)
    error = np.array([0.1, 4.0, 1.0, 9.0, 0.5])
    replay.prioritise(np.arange(5), error)
    expected = (error + SMALL) ** priority / ((error + SMALL) ** priority).sum()
    draws = 20_000
    one_by_one = np.concatenate([replay.sample(np.array([u])).rows for u in generator().random(draws)])
    for found in (one_by_one, replay.sample(generator(1).random(draws)).rows):
        often = np.bincount(found, minlength=5)
        surprise = ((often - draws * expected) ** 2 / (draws * expected)).sum()
        assert surprise < 23.5  # chi-square of 4 degrees exceeds this once in 10,000 times


def test_importance_weights_by_hand():
    replay = filled(*range(4), size=6, priority=0.5)
    replay.prioritise(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))
    chance = np.sqrt(np.array([1.0, 4.0, 9.0, 16.0]) + SMALL) / 10.000005  # 1 + 2 + 3 + 4
    for beta in (0.0, 0.4, 1.0):
        drawn = replay.sample(generator().random(50), beta)
        raw = (4 * chance[drawn.rows]) ** -beta
        assert np.allclose(drawn.weight, raw / raw.max(), atol=1e-5)
        assert drawn.weight.max() == 1
    assert len(set(drawn.weight.tolist())) == 4


def test_without_priorities_every_row_weighs_the_same():
    replay = filled(*range(5), priority=0.0)
    replay.prioritise(np.array([2]), np.array([100.0]))
    drawn = replay.sample(np.array([0.0, 0.19, 0.2, 0.5, 0.99]), 1.0)
    assert drawn.rows.tolist() == [0, 0, 1, 2, 4]
    assert drawn.weight.tolist() == [1] * 5


def test_new_rows_get_the_highest_priority_so_far():
    replay = filled(0, 1, 2, size=4)
    assert leaves(replay).tolist() == pytest.approx([1, 1, 1, 0], abs=1e-5)
    replay.prioritise(np.array([1]), np.array([7.0]))
    replay.add(rows(3))
    assert leaves(replay)[3] == pytest.approx(7, abs=1e-5)
    replay.prioritise(np.arange(4), np.full(4, 0.5))
    replay.add(rows(4))
    assert leaves(replay).tolist() == pytest.approx([7, 0.5, 0.5, 0.5], abs=1e-5)


def test_an_error_of_nothing_is_still_drawn():
    replay = filled(0, 1, size=2)
    replay.prioritise(np.arange(2), np.zeros(2))
    assert set(replay.sample(generator().random(20)).rows.tolist()) == {0, 1}


# State -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0.0, 0.7])
@pytest.mark.parametrize("count", [0, 3, 5, 12])
@pytest.mark.parametrize("used", [False, True])
def test_a_loaded_replay_goes_on_as_the_saved_one(count, priority, used):
    one, other = make(priority=priority), make(priority=priority)
    one.add(rows(*range(count)))
    if count:
        one.prioritise(np.arange(one.size), generator().random(one.size) * 9)
    if used:
        other.add(rows(*range(50, 57)))
        other.prioritise(np.arange(5), np.full(5, 3.0))
    state = one.state()
    other.load(state)
    for step in range(4):
        assert held(one) == held(other)
        assert np.array_equal(one.nodes, other.nodes)
        assert (one.position % 5, one.size) == (other.position % 5, other.size)
        if one.size:
            uniform = generator(step).random(30)
            mine, theirs = (replay.sample(uniform, 0.5) for replay in (one, other))
            assert np.array_equal(mine.rows, theirs.rows)
            assert np.array_equal(mine.weight, theirs.weight)
        for replay in (one, other):
            replay.add(rows(100 + 2 * step, 101 + 2 * step))
            replay.prioritise(np.array([0]), np.array([step + 20.0]))
    assert len(state["rows"]["number"]) == min(count, 5)  # a state is a copy, without rows never written


def test_a_used_replay_may_go_back_to_nothing():
    replay, empty = filled(1, 2, 3), make().state()
    replay.load(empty)
    replay.add(rows(7))
    assert set(replay.sample(generator().random(100)).rows.tolist()) == {0}


def test_a_replay_that_was_not_full_may_grow():
    state = filled(1, 2, 3, size=4).state()
    larger = make(size=9)
    larger.load(state)
    larger.add(rows(4, 5))
    assert held(larger) == [1, 2, 3, 4, 5]
    exact = make(size=3)
    exact.load(state)
    exact.add(rows(4))
    assert held(exact) == [4, 2, 3]


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        ({"size": 6}, {"size": 4}, "the saved replay holds 5 rows, replay.size is 4"),
        ({"size": 5}, {"size": 8}, "the saved replay was full at 5 rows; replay.size cannot become 8"),
        ({"size": 6, "priority": 0.0}, {"size": 6}, "has the exponent 0; replay.priority cannot change"),
    ],
)
def test_a_replay_that_does_not_fit_is_refused(saved, here, message):
    with pytest.raises(ValueError, match=message):
        make(**here).load(filled(*range(5), **saved).state())


def test_rows_of_another_shape_are_refused():
    wider = Replay(ReplaySettings(5, 1), Rows(np.zeros(0), np.zeros((0, 3))))
    with pytest.raises(ValueError, match="the saved replay's 'seen' has another shape than this world's"):
        wider.load(filled(1, 2).state())


# Misuse ------------------------------------------------------------------------------------------------


def test_nothing_can_be_drawn_from_an_empty_replay():
    for priority in (0.0, 1.0):
        with pytest.raises(ValueError, match="empty"):
            make(priority=priority).sample(np.zeros(3))


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_what_is_no_priority_is_refused_and_changes_nothing(bad):
    replay = filled(0, 1, 2)
    before, top = replay.nodes.copy(), replay.top
    with pytest.raises(ValueError, match=f"a priority must be a number of at least 0, got {bad:g} for row 2"):
        replay.prioritise(np.array([1, 2]), np.array([1.0, bad]))
    assert np.array_equal(replay.nodes, before)
    assert replay.top == top


@pytest.mark.parametrize("index", [-1, 3, 5, 1000])
def test_a_row_that_is_not_there_has_no_priority(index):
    with pytest.raises(ValueError, match=r"rows 0 to 2 can have a priority, got"):
        filled(0, 1, 2).prioritise(np.array([index]), np.array([1.0]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"learning_starts": 0}, "learning_starts must be at least 1, got 0"),
        (
            {"size": 10, "learning_starts": 11},
            r"learning_starts must be at most size \(10\), or learning never starts; got 11",
        ),
        ({"priority": 1.5}, r"priority must lie in \[0, 1\], got 1.5"),
        ({"priority": -0.1}, r"priority must lie in \[0, 1\], got -0.1"),
        ({"importance": 2}, r"importance must lie in \[0, 1\], got 2"),
        ({"importance": math.nan}, r"importance must lie in \[0, 1\], got nan"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ReplaySettings(**fields)
