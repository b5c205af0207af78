"""Sudoku: one solution, clues that stay, rewards by hand, forms of answers, programs in the sandbox."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from coterie.core.types import CoterieError
from coterie.worlds.tasks.sudoku import SudokuSettings, SudokuState, SudokuTask, in_conflict, parse_grid, rows, solution
from coterie.worlds.tasks.world import AGENT_TYPE
from helpers.tasks import make

PUZZLE = "12.4" + "3412" + "21.3" + "432."
SOLVED = "1234" + "3412" + "2143" + "4321"
STATE = SudokuState(2, PUZZLE, PUZZLE)


@pytest.fixture
def task():
    return SudokuTask(SudokuSettings())


@pytest.mark.parametrize(
    ("answer", "team", "local", "solved", "readable"),
    [
        ("1234\n3412\n2143\n4321", 1.0, 0.5, True, True),
        ("1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1", 1.0, 0.5, True, True),
        ("r1c3=3 r3c3=4 r4c4=1", 1.0, 0.5, True, True),
        ("r1c3=3", 0.0, 0.5 / 3, False, True),  # one of three cells
        ("r1c3=1", 0.0, -0.25 / 3, False, True),  # repeats a digit of its row
        ("r1c1=1", 0.0, 0.0, False, True),  # a clue, as it is
        ("r1c1=2", 0.0, -0.5, False, True),  # changes a clue
        ("2134\n3412\n1243\n4321", 0.0, -0.5, False, True),  # changes clues; a valid grid, but of another puzzle
        ("1234\n3412\n2143", 0.0, -0.5, False, False),  # a row is missing
        ("r1c3=7", 0.0, -0.5, False, False),  # no such digit
        ("I give up", 0.0, -0.5, False, False),
    ],
)
def test_rewards_by_hand(task, answer, team, local, solved, readable):
    outcome = task.apply(STATE, "planner", answer)
    assert (outcome.team, outcome.local) == (team, pytest.approx(local))
    assert (outcome.solved, outcome.readable) == (solved, readable)


def test_a_valid_grid_that_breaks_a_clue_is_neither_rewarded_nor_kept(task):
    other = "2134" + "3421" + "1243" + "4312"
    assert in_conflict(other, "." * 16, 2) == 0  # a Sudoku grid
    outcome = task.apply(STATE, "planner", rows(other, 2))
    assert (outcome.team, outcome.solved, outcome.state.grid) == (0.0, False, PUZZLE)


def test_cells_are_kept_and_may_be_corrected(task):
    wrong = task.apply(STATE, "planner", "r1c3=1").state
    assert wrong.grid == "1214" + PUZZLE[4:]
    assert "1214" in task.fields(wrong, "planner")["grid"]
    better = task.apply(wrong, "planner", "r1c3=3")
    assert better.local == pytest.approx(0.5 / 3)
    assert task.apply(better.state, "planner", "r1c3=2").local < 0  # a right cell is lost


def test_prompts_write_blanks_as_set():
    fields = SudokuTask(SudokuSettings(blank="0")).fields(STATE, "tool")
    assert fields["puzzle"] == "1204\n3412\n2103\n4320"
    assert fields["blanks"] == "zeros"


def test_a_proposal_is_shown_but_fills_nothing_in(task):
    outcome = task.apply(STATE, "tool", rows(SOLVED, 2))
    assert (outcome.team, outcome.solved) == (1.0, False)
    assert outcome.state == replace(STATE, proposal=SOLVED)
    prompt = task.templates["planner"].format_map(task.fields(outcome.state, "planner"))
    assert rows(SOLVED, 2) in prompt
    assert rows(PUZZLE, 2) in prompt


def test_blanks_in_rows_leave_cells_as_they_are():
    assert parse_grid("..3.\n0000\n____\n. . . 1", PUZZLE, 2) == "1234" + "3412" + "21.3" + "4321"


def test_digits_of_other_scripts_are_no_digits():
    assert parse_grid("r1c3=3", PUZZLE, 2) == PUZZLE[:2] + "3" + PUZZLE[3:]
    assert parse_grid("r1c3=٣", PUZZLE, 2) is None
    assert parse_grid("r١c3=3", PUZZLE, 2) is None


def count_solutions(clues):
    """A second, plain count for grids of 4 × 4."""
    lines = list(itertools.permutations("1234"))
    fits = [[line for line in lines if all(c in (".", d) for c, d in zip(clues[r * 4 :], line))] for r in range(4)]
    return sum(in_conflict("".join(map("".join, grid)), "." * 16, 2) == 0 for grid in itertools.product(*fits))


@pytest.mark.parametrize("blanks", [6, 10])
def test_small_puzzles_have_exactly_one_solution(blanks):
    task, random = SudokuTask(SudokuSettings(blanks=blanks)), np.random.default_rng(0)
    for _ in range(8):
        state = task.generate(random)
        assert state.clues.count(".") == blanks
        assert count_solutions(state.clues) == 1


def test_large_puzzles_have_one_solution_that_keeps_the_clues():
    task, random = SudokuTask(SudokuSettings(box=3, blanks=50)), np.random.default_rng(0)
    for _ in range(5):
        state = task.generate(random)
        full = solution(state.clues, 3)
        assert state.clues.count(".") == 50
        assert in_conflict(full, "." * 81, 3) == 0
        assert all(clue in (".", digit) for clue, digit in zip(state.clues, full, strict=True))
        assert task.apply(state, "planner", rows(full, 3)).solved


def test_puzzles_with_several_or_no_solutions_are_refused():
    with pytest.raises(ValueError, match="several"):
        solution("." * 16, 2)
    with pytest.raises(ValueError, match="none"):
        solution("11" + "." * 14, 2)


def test_a_program_of_the_tool_runs_in_the_sandbox(live_sandbox):
    task = SudokuTask(SudokuSettings(tool="program"))
    written = f"import sys\nassert sys.stdin.read().split()[0] == '12.4'\nprint({rows(SOLVED, 2)!r})\n```"
    assert task.apply(STATE, "tool", written).state.proposal == SOLVED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"box": 4}, "box"),
        ({"blanks": 13}, "blanks.*12"),
        ({"blanks": 0}, "blanks"),
        ({"tool": "path"}, "tool"),
        ({"blank": "x"}, "blank"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        SudokuSettings(**settings)


def test_a_task_that_returns_no_outcome_is_named(monkeypatch):
    world = make("sudoku", 1)
    world.reset(0)
    monkeypatch.setattr(type(world.task), "apply", lambda task, state, role, answer: (state, 1.0))
    with pytest.raises(CoterieError, match=r"SudokuTask\.apply must return an Outcome, got tuple"):
        world.step({AGENT_TYPE: world.expert(AGENT_TYPE, np.random.default_rng(0))})
