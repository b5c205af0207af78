"""Sokoban: rules and rewards by hand, exact deadlocks, solutions, settings."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.worlds.tasks.sokoban import (
    SokobanSettings,
    SokobanState,
    SokobanTask,
    Solver,
    grid_text,
    move,
    solver,
)


def state(text):
    """A state from a picture."""
    cells = text.replace(" ", "").replace("\n", "")
    size = int(len(cells) ** 0.5)
    found = {sign: tuple(i for i, cell in enumerate(cells) if cell in sign) for sign in ("@+", "$*", "o*+")}
    walls = "".join("#" if cell == "#" else "." for cell in cells)
    return SokobanState(size, walls, found["o*+"], found["@+"][0], found["$*"])


ROOM = """
######
#@...#
#.$..#
#..o.#
#....#
######
"""
TWO = """
######
#@...#
#.$$.#
#.oo.#
#....#
######
"""


@pytest.fixture
def task():
    return SokobanTask(SokobanSettings())


def test_a_picture_is_read_back():
    assert grid_text(state(ROOM)) == ROOM.strip()
    assert grid_text(state(TWO)) == TWO.strip()


def test_signs_may_stand_apart():
    task = SokobanTask(SokobanSettings(spaced=True))
    first = state(ROOM)
    assert task.fields(first, "tool")["grid"].split("\n")[1] == "# @ . . . #"
    answer = task.solve(first, "planner")
    assert set(answer[1::2]) == {" "}
    assert task.apply(first, "planner", answer).solved
    assert set(task.guess(first, "planner", np.random.default_rng(0))[1::2]) <= {" "}


def test_moves_push_boxes_and_stop_at_walls():
    first = state(ROOM)
    assert move(first, "L") is None  # a wall
    down = move(first, "D")
    assert (down.player, down.boxes) == (13, (14,))
    pushed = move(down, "R")
    assert (pushed.player, pushed.boxes) == (14, (15,))
    assert move(move(pushed, "R"), "R") is None  # the box stands at the wall
    two = move(state(TWO), "D")
    assert move(two, "R") is None  # a box behind the box


@pytest.mark.parametrize(
    ("room", "answer", "team", "local", "solved", "failed"),
    [
        (ROOM, "DRURD", 1.0, 0.5, True, False),  # right, then down onto the goal
        (ROOM, "R", 0.0, 0.0, False, False),
        (ROOM, "L", 0.0, -0.25, False, False),  # not possible
        (ROOM, "RD", 0.0, 0.0, False, False),  # the box is at another place, not on the goal
        (ROOM, "RDD", 0.0, -0.5, False, True),  # the box stands at the lower wall for ever: a deadlock
        (TWO, "RD", 0.0, 0.5 / 2, False, False),  # one of two boxes on its goal
        (TWO, "RDURD", 1.0, 0.5, True, False),
        (ROOM, "north", 0.0, -0.5, False, False),  # cannot be read
    ],
)
def test_rewards_by_hand(task, room, answer, team, local, solved, failed):
    outcome = task.apply(state(room), "planner", answer)
    assert (outcome.team, outcome.local) == (team, pytest.approx(local))
    assert (outcome.solved, outcome.failed) == (solved, failed)
    assert outcome.readable == (answer != "north")


def test_a_box_pushed_off_its_goal_costs_what_it_brought(task):
    on_goal = task.apply(state(TWO), "planner", "RD").state
    assert task.apply(on_goal, "planner", "D").local == pytest.approx(-0.25 - 0.5)  # off, and into a deadlock


def test_a_proposal_is_rewarded_but_changes_nothing(task):
    first = state(ROOM)
    outcome = task.apply(first, "tool", "RDD")
    assert (outcome.local, outcome.failed) == (-0.5, False)
    assert outcome.state == replace(first, proposal="RDD")


def brute_force(first):
    """Every position that forward moves lead to, and whether it can be solved: a second, plain search."""
    after, queue = {}, [first]
    while queue:
        at = queue.pop()
        key = (at.player, at.boxes)
        if key not in after:
            moved = [m for m in (move(at, letter) for letter in "UDLR") if m is not None]
            after[key] = [(m.player, m.boxes) for m in moved]
            queue += moved
    good = {key for key in after if key[1] == first.goals}
    while True:
        more = {key for key, ways in after.items() if key not in good and any(way in good for way in ways)}
        if not more:
            return after, good
        good |= more


@pytest.mark.parametrize("boxes", [1, 2])
def test_deadlocks_are_exact(boxes):
    task, random = SokobanTask(SokobanSettings(size=5, boxes=boxes, walls=0.05, min_pushes=1)), np.random.default_rng(0)
    dead = 0
    for _ in range(4):
        first = task.generate(random)
        after, good = brute_force(first)
        known = solver(first.size, first.walls, first.goals)
        for player, placed in after:
            distance = known.distance(replace(first, player=player, boxes=placed))
            assert (distance >= 0) == ((player, placed) in good)
            dead += distance < 0
    assert dead > 20


def test_distances_count_pushes_and_solutions_have_the_fewest(task):
    random = np.random.default_rng(1)
    for _ in range(20):
        at = task.generate(random)
        known, pushes = solver(at.size, at.walls, at.goals), 0
        left = known.distance(at)
        assert left >= 2  # min_pushes
        for letter in task.solve(at, "planner"):
            after = move(at, letter)
            pushes += after.boxes != at.boxes
            at = after
        assert (pushes, at.boxes) == (left, at.goals)


def test_difficulty_is_kept():
    task = SokobanTask(SokobanSettings(size=7, min_pushes=5, max_pushes=6))
    random = np.random.default_rng(0)
    for _ in range(10):
        first = task.generate(random)
        assert 5 <= Solver(first.size, first.walls, first.goals).distance(first) <= 6


def test_room_and_goals_decide_which_instance_a_puzzle_belongs_to(task):
    first = state(ROOM)
    assert task.identity(first) == task.identity(replace(first, player=10, boxes=(15,)))
    assert task.identity(first) != task.identity(replace(first, goals=(15,)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 4}, "size"),
        ({"boxes": 0}, "boxes"),
        ({"boxes": 3, "size": 12}, "size and boxes.*positions"),
        ({"min_pushes": 3, "max_pushes": 2}, "max_pushes"),
        ({"tool": "path"}, "tool"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        SokobanSettings(**settings)


def test_an_impossible_difficulty_is_named():
    with pytest.raises(ValueError, match="min_pushes=40"):
        SokobanTask(SokobanSettings(size=5, min_pushes=40)).generate(np.random.default_rng(0))


@pytest.mark.slow
def test_endless_proposals_are_cut_off_and_solutions_are_not(task):
    begin = state(ROOM)
    solved = task.solve(begin, "tool")
    for junk in ("U" * 900_000, ""):
        outcome = task.apply(begin, "tool", solved + junk)
        assert (outcome.team, outcome.local) == (1.0, 0.5)
        assert outcome.state.proposal == (solved + junk)[: 8 * 36]
    assert len(task.apply(begin, "tool", "RL" * 10**6).state.proposal) == 8 * 36
    hard, random = SokobanTask(SokobanSettings(boxes=2, min_pushes=8)), np.random.default_rng(0)
    assert max(len(hard.solve(hard.generate(random), "tool")) for _ in range(5)) < 4 * 36
