"""The Connect Four solver against brute force, published scores, symmetry and its own moves."""

import functools
import subprocess
import sys
import time

import numpy as np
import pytest

from coterie.worlds.boards.connect_four import COLUMNS, GAME, has_four
from coterie.worlds.boards.connect_four_solver import CELLS, ILLEGAL, Solver, generate_positions


def stones(positions):
    return np.array([(int(p[1]) | int(p[2])).bit_count() for p in positions])


def brute_force(position):
    """Scores of all legal columns by plain minimax."""
    own, other = int(position[1 + position[0]]), int(position[2 - position[0]])
    return {
        column: move_score(own, other, column) for column in range(COLUMNS) if not (own | other) >> 7 * column + 5 & 1
    }


@functools.cache
def move_score(own, other, column):
    """The score of a column for the player who owns `own`; plain Python integers."""
    taken = own | other
    own |= (taken + (1 << 7 * column)) & (63 << 7 * column)
    if has_four.py_func(own):
        return (CELLS + 1 - taken.bit_count()) // 2
    replies = [c for c in range(COLUMNS) if not (own | other) >> 7 * c + 5 & 1]
    return -max((move_score(other, own, c) for c in replies), default=0)


def mirrored(position):
    """The position with left and right exchanged."""

    def turn(bits):
        return sum(((int(bits) >> 7 * column) & 127) << 7 * (COLUMNS - 1 - column) for column in range(COLUMNS))

    return np.array([position[0], turn(position[1]), turn(position[2])])


@pytest.mark.slow
def test_scores_of_late_positions_are_those_of_brute_force():
    positions = generate_positions(60, (30, 40), seed=1)
    solver = Solver(10_007)
    scores, values = solver.move_scores(positions), solver.move_values(positions)
    keeping = solver.keeping_moves(positions)
    for n, position in enumerate(positions):
        expected = brute_force(position)
        best = max(expected.values())
        assert {c: s for c, s in enumerate(scores[n].tolist()) if s != ILLEGAL} == expected
        assert {c: v for c, v in enumerate(values[n].tolist()) if v != ILLEGAL} == {
            column: np.sign(score) for column, score in expected.items()
        }
        assert np.flatnonzero(keeping[n]).tolist() == [c for c, s in expected.items() if np.sign(s) == np.sign(best)]
        assert solver.scores(position[None]).tolist() == [best]
        assert solver.values(position[None]).tolist() == [np.sign(best)]


@pytest.mark.parametrize(
    ("columns", "score"),  # published with "Solving Connect Four"; columns are counted from 1
    [
        ("2252576253462244111563365343671351441", -1),
        ("7422341735647741166133573473242566", 1),
        ("23163416124767223154467471272416755633", 0),
        ("65214673556155731566316327373221417", -1),
    ],
)
def test_published_scores(columns, score):
    position = GAME.start[None].copy()
    for column in columns:
        GAME.apply(position, np.array([int(column) - 1]))
    assert Solver(100_003).scores(position).tolist() == [score]


def test_scores_agree_with_moves_mirrors_and_each_other():
    positions = generate_positions(40, (18, 26), seed=2)
    solver = Solver(1_000_003)
    scores, moves = solver.scores(positions), solver.move_scores(positions)
    assert (moves.max(axis=1) == scores).all()
    assert ((moves == ILLEGAL) == ~GAME.legal(positions)).all()
    assert (Solver(1_000_003).scores(np.stack([mirrored(p) for p in positions])) == scores).all()
    assert (Solver(1_009).values(positions) == np.sign(scores)).all()  # a small table forgets, and stays right
    assert {-1, 1} <= set(np.sign(scores).tolist())


def test_the_best_moves_of_both_sides_lead_to_the_score():
    solver = Solver(1_000_003)
    for position in generate_positions(10, 20, seed=3):
        row, mover, score = position[None].copy(), position[0], int(solver.scores(position[None])[0])
        while not GAME.outcome(row)[0][0]:
            GAME.apply(row, solver.move_scores(row).argmax(axis=1))
        payoff = int(GAME.outcome(row)[1][0, mover])
        assert payoff == np.sign(score)
        if score:
            played = stones(row)[0]  # the winner's stones: the first player has one more after an odd number
            assert abs(score) == 22 - (played + 1) // 2


@pytest.mark.usefixtures("no_garbage_collection")
def test_sixteen_stones_take_milliseconds():
    positions = generate_positions(200, (16, 30), seed=0)
    solver = Solver()
    solver.values(positions[:1])
    start = time.process_time()
    solver.values(positions)
    assert (time.process_time() - start) / 200 < 0.02


def test_positions_differ_are_not_over_and_have_their_stones():
    positions = generate_positions(300, (16, 20), seed=5)
    assert len({tuple(p) for p in positions.tolist()}) == 300
    assert not GAME.outcome(positions)[0].any()
    assert set(stones(positions).tolist()) == {16, 17, 18, 19, 20}
    assert (positions[:, 0] == stones(positions) % 2).all()
    assert (generate_positions(300, (16, 20), seed=5) == positions).all()
    assert (generate_positions(300, (16, 20), seed=6) != positions).any()
    assert set(stones(generate_positions(50, 16, seed=0)).tolist()) == {16}
    assert generate_positions(1, 0, seed=0).tolist() == [[0, 0, 0]]


@pytest.mark.slow
def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="between 0 and 41"):
        generate_positions(1, 42, 0)
    with pytest.raises(ValueError, match="found only 7 different positions"):
        generate_positions(8, 1, 0)
    won = GAME.start[None].copy()
    for column in (0, 1, 0, 1, 0, 1, 0):
        GAME.apply(won, np.array([column]))
    with pytest.raises(ValueError, match="position 1: the game is over"):
        Solver(101).scores(np.concatenate([GAME.start[None], won]))


@pytest.mark.slow
def test_the_solver_runs_from_numbas_cache():
    """A recursive form crashed in every process but the one that compiled it."""
    code = (
        "from coterie.worlds.boards.connect_four_solver import Solver, generate_positions; "
        "print(Solver(1009).move_values(generate_positions(2, 34, 0)).shape)"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"(2, 7)\n"
