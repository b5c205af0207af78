"""Sudoku: fill a grid so that every row, column and box holds every digit once.

The tool proposes a grid, in rows, in cells such as `r1c2=3`, or as a program that prints one of these; the planner
reads the proposal and writes in the same forms. What it writes is kept and may be changed in later turns; the clues are
not to be changed: an answer that does so is refused as a whole and solves nothing. Every puzzle has exactly one
solution.

Rewards: the team's is 1 for the solved grid. The role's own is CELLS · (right cells gained − lost) / blanks −
CONFLICT · (cells in conflict) / blanks, where a cell is in conflict if it repeats a digit of its row, column or box and
is not a clue; less for a changed clue or an answer that cannot be read. A proposal is rewarded for what following it
would do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.core.validation import at_least, one_of, whole
from coterie.worlds.tasks.programs import find_program, output_of
from coterie.worlds.tasks.task import Outcome, TaskSettings
from coterie.worlds.tasks.world import TaskWorld

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

CELLS, CONFLICT = 0.5, 0.25  # local rewards for all blanks right, and in conflict
CLUE, UNREADABLE = -0.5, -0.5  # local rewards
MOST_BLANKS = {2: 12, 3: 54}  # by box: puzzles with one solution and more blanks are rare
Tool = Literal["grid", "program"]
BLANK = "."
CELL = re.compile(r"r([0-9])\s*c([0-9])\s*[=:]\s*([0-9])", re.IGNORECASE)  # not \d, which has other scripts' digits

BLANKS = {".": "dots", "0": "zeros", "_": "underscores"}  # how prompts may write blanks
RULES = "Every row, column and {box}x{box} box holds each digit from 1 to {digits} once. Blanks are {blanks}.\n"
TOOL = "You are the tool. Solve the Sudoku. " + RULES + "Puzzle:\n{puzzle}\nFilled in so far:\n{grid}\n"
TEMPLATES = {
    "grid": TOOL + "Write the whole grid, row by row.\nGrid:\n",
    "program": TOOL + "Write a Python program that reads the puzzle from standard input and prints the whole grid, row "
    "by row.\n```python\n",
}
PLANNER = (
    "You are the planner. Solve the Sudoku. " + RULES + "Puzzle:\n{puzzle}\nFilled in so far:\n{grid}\n"
    "The tool proposes:\n{proposal}\nWrite the whole grid, row by row.\nGrid:\n"
)


@dataclass(frozen=True)
class SudokuSettings(TaskSettings):
    """Size of the grid, difficulty, and what the tool writes."""

    # Cells along the side of a box: 2 for grids of 4 × 4, 3 for 9 × 9.
    box: int = 2
    # Cells to fill in.
    blanks: int = 6
    # How prompts write a blank: ".", "0" or "_". Tokenizers glue dots together, pretrained models read zeros better.
    blank: str = BLANK
    # What the tool writes: a grid, or a program that prints one and runs in the sandbox.
    tool: Tool = "grid"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("box", "blanks"):
            whole(name, getattr(self, name))
        if self.box not in MOST_BLANKS:
            raise ValueError(f"box must be 2 or 3, got {self.box}")
        at_least("blanks", self.blanks, 1)
        if self.blanks > MOST_BLANKS[self.box]:
            raise ValueError(f"blanks must be at most {MOST_BLANKS[self.box]} with box={self.box}, got {self.blanks}")
        for name, known in (("tool", get_args(Tool)), ("blank", BLANKS)):
            one_of(name, getattr(self, name), known)


@dataclass(frozen=True)
class SudokuState:
    """A puzzle, what has been filled in, and the tool's latest proposal; grids are strings, row by row."""

    box: int
    clues: str
    grid: str  # the clues and what was filled in
    proposal: str = ""


# Grids ------------------------------------------------------------------------------------------------


def rows(grid: str, box: int) -> str:
    """A grid in lines."""
    side = box * box
    return "\n".join(grid[start : start + side] for start in range(0, len(grid), side))


def parse_grid(answer: str, grid: str, box: int) -> str | None:
    """The grid that an answer makes of the present one: given in rows, or in cells; None where it has another form.

    A blank in a row leaves the cell as it is.
    """
    side = box * box
    cells = CELL.findall(answer)
    if cells:
        if any(not 1 <= int(number) <= side for cell in cells for number in cell):
            return None
        written = list(grid)
        for row, column, digit in cells:
            written[(int(row) - 1) * side + int(column) - 1] = digit
        return "".join(written)
    lines = [re.sub(r"[\s|,]", "", line).replace("0", BLANK).replace("_", BLANK) for line in answer.split("\n")]
    allowed = set(BLANK + "123456789"[:side])
    found = [line for line in lines if line and set(line) <= allowed]
    whole_grid = next((line for line in found if len(line) == side * side), None)
    if whole_grid is None:
        found = [line for line in found if len(line) == side][:side]
        if len(found) < side:
            return None
        whole_grid = "".join(found)
    return "".join(old if new == BLANK else new for new, old in zip(whole_grid, grid, strict=True))


@lru_cache(maxsize=4)
def peers(box: int) -> tuple[tuple[int, ...], ...]:
    """For every cell, the others of its row, column and box."""
    side = box * box

    def units(cell: int) -> tuple[int, int, int]:
        row, column = divmod(cell, side)
        return row, column, row // box * box + column // box

    everything = [units(cell) for cell in range(side * side)]
    return tuple(
        tuple(o for o, other in enumerate(everything) if o != c and any(a == b for a, b in zip(own, other)))
        for c, own in enumerate(everything)
    )


def in_conflict(grid: str, clues: str, box: int) -> int:
    """Cells that are no clues and repeat a digit of their row, column or box."""
    near = peers(box)
    return sum(
        digit != BLANK and clues[cell] == BLANK and any(grid[other] == digit for other in near[cell])
        for cell, digit in enumerate(grid)
    )


@lru_cache(maxsize=4096)
def solution(clues: str, box: int) -> str:
    """The only solution of a puzzle."""
    count, found = _search(_numbers(clues), box, 2, _plain_order(box))
    if count != 1:
        raise ValueError(f"a puzzle has one solution, this one has {'none' if not count else 'several'}: {clues}")
    return _text(found)


def _numbers(grid: str) -> Array:
    return np.array([0 if sign == BLANK else int(sign) for sign in grid], np.int64)


def _text(numbers: Array) -> str:
    return "".join(BLANK if number == 0 else str(number) for number in numbers.tolist())


def _plain_order(box: int) -> Array:
    side = box * box
    return np.tile(np.arange(side), (side * side, 1))


# Search -----------------------------------------------------------------------------------------------


@jit
def _search(grid: Array, box: int, limit: int, order: Array) -> tuple[int, Array]:
    """The number of solutions of a grid, up to a limit, and the first; `order` `[cells, digits]` is tried in turn."""
    side = box * box
    cells = side * side
    used, filled, first = np.zeros((3, side), np.int64), grid.copy(), np.zeros(cells, np.int64)
    for cell in range(cells):
        if filled[cell]:
            bit = 1 << (filled[cell] - 1)
            row, column = cell // side, cell % side
            square = row // box * box + column // box
            if (used[0, row] | used[1, column] | used[2, square]) & bit:
                return 0, first
            _toggle(used, cell, bit, box)
    where, left = np.full(cells + 1, -1, np.int64), np.zeros(cells + 1, np.int64)
    where[0], left[0] = _narrowest(used, filled, box)
    depth, count = 0, 0
    while depth >= 0:
        cell = where[depth]
        if cell < 0:  # all cells are filled
            count += 1
            if count == 1:
                first[:] = filled
            if count == limit:
                break
            depth -= 1
            continue
        if filled[cell]:
            _toggle(used, cell, 1 << (filled[cell] - 1), box)
            filled[cell] = 0
        if not left[depth]:
            depth -= 1
            continue
        for digit in order[cell]:
            if left[depth] >> digit & 1:
                break
        left[depth] ^= 1 << digit
        filled[cell] = digit + 1
        _toggle(used, cell, 1 << digit, box)
        depth += 1
        where[depth], left[depth] = _narrowest(used, filled, box)
    return count, first


@jit
def _toggle(used: Array, cell: int, bit: int, box: int) -> None:
    row, column = cell // (box * box), cell % (box * box)
    used[0, row] ^= bit
    used[1, column] ^= bit
    used[2, row // box * box + column // box] ^= bit


@jit
def _narrowest(used: Array, filled: Array, box: int) -> tuple[int, int]:
    """The blank cell with the fewest digits left, and these as bits; −1 without a blank."""
    side = box * box
    best, fewest, digits = -1, side + 1, 0
    for cell in range(side * side):
        if filled[cell]:
            continue
        row, column = cell // side, cell % side
        free = ~(used[0, row] | used[1, column] | used[2, row // box * box + column // box]) & ((1 << side) - 1)
        count, rest = 0, free
        while rest:
            rest &= rest - 1
            count += 1
        if count < fewest:
            best, fewest, digits = cell, count, free
    return best, digits


@jit
def _dig(full: Array, box: int, blanks: int, cells: Array, order: Array) -> tuple[int, Array]:
    """Empty cells in the given order while the solution stays the only one; how many, and the clues that are left."""
    clues, removed = full.copy(), 0
    for cell in cells:
        if removed == blanks:
            break
        digit = clues[cell]
        clues[cell] = 0
        if _search(clues, box, 2, order)[0] == 1:
            removed += 1
        else:
            clues[cell] = digit
    return removed, clues


# The task ---------------------------------------------------------------------------------------------


class SudokuTask:
    """The rules of Sudoku."""

    roles: tuple[str, ...] = ("tool", "planner")
    state_type = SudokuState

    def __init__(self, settings: SudokuSettings) -> None:
        self.settings = settings
        self.templates: Mapping[str, str] = {"tool": TEMPLATES[settings.tool], "planner": PLANNER}

    def generate(self, random: np.random.Generator) -> SudokuState:
        """A full grid in which cells are emptied while the solution stays the only one."""
        box, blanks = self.settings.box, self.settings.blanks
        side = box * box
        while True:
            order = random.permuted(_plain_order(box), axis=1)
            full = _search(np.zeros(side * side, np.int64), box, 1, order)[1]
            removed, clues = _dig(full, box, blanks, random.permutation(side * side), _plain_order(box))
            if removed == blanks:
                return SudokuState(box, _text(clues), _text(clues))

    def identity(self, state: SudokuState) -> str:
        return state.clues

    def fields(self, state: SudokuState, role: str) -> Mapping[str, str]:
        return {
            "puzzle": self._show(state.clues),
            "grid": self._show(state.grid),
            "proposal": self._show(state.proposal) if state.proposal else "nothing",
            "blanks": BLANKS[self.settings.blank],
            "box": str(state.box),
            "digits": str(state.box**2),
        }

    def _show(self, grid: str) -> str:
        return rows(grid, self.settings.box).replace(BLANK, self.settings.blank)

    def apply(self, state: SudokuState, role: str, answer: str) -> Outcome:
        grid = self._read(state, role, answer)
        kept = replace(state, proposal="" if role == "tool" else state.proposal)
        if grid is None:
            return Outcome(kept, local=UNREADABLE, readable=False, note="no grid could be read")
        if any(clue not in (BLANK, digit) for clue, digit in zip(state.clues, grid, strict=True)):
            return Outcome(kept, local=CLUE, note="changes a clue")
        right, blanks = solution(state.clues, state.box), state.clues.count(BLANK)
        gained = _equal(grid, right) - _equal(state.grid, right)
        conflicts = in_conflict(grid, state.clues, state.box)
        solved = grid == right
        local = (CELLS * gained - CONFLICT * conflicts) / blanks
        note = "solved" if solved else f"{gained:+d} right cells, {conflicts} in conflict"
        if role == "tool":
            return Outcome(replace(state, proposal=grid), float(solved), local, note=f"proposes: {note}")
        return Outcome(replace(state, grid=grid, proposal=""), float(solved), local, solved=solved, note=note)

    def _read(self, state: SudokuState, role: str, answer: str) -> str | None:
        """The grid after an answer; a program is run to get it."""
        program = find_program(answer, self.settings.tool == "program") if role == "tool" else None
        text = answer if program is None else output_of(program, self._show(state.clues) + "\n")
        return parse_grid(text, state.grid, state.box)

    def solve(self, state: SudokuState, role: str) -> str:
        return rows(solution(state.clues, state.box), state.box)

    def guess(self, state: SudokuState, role: str, random: np.random.Generator) -> str:
        digits = random.integers(1, state.box**2 + 1, len(state.clues)).tolist()
        filled = [str(digit) if clue == BLANK else clue for clue, digit in zip(state.clues, digits, strict=True)]
        return rows("".join(filled), state.box)

    def draw(self, state: SudokuState) -> str:
        return rows(state.grid, state.box)


def _equal(grid: str, right: str) -> int:
    return sum(a == b for a, b in zip(grid, right, strict=True))


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """Sudoku as a PettingZoo AEC environment; `settings` are those of `SudokuSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(Sudoku, SudokuSettings, "sudoku", render_mode, settings)


class Sudoku(TaskWorld):
    """N copies of Sudoku."""

    def __init__(self, settings: SudokuSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs, SudokuTask(settings), proposing=("tool",))
