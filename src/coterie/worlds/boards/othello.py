"""Othello on 4 × 4, 6 × 6 or 8 × 8 cells: rules, estimate, text codec.

Cell (row, column) is bit size · row + column of a player's discs. The last action is a pass: legal when the player to
move can flip nothing and the opponent can; the game is over when neither can. Most discs win.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.game import CompiledGame, compile_estimate, compile_rules
from coterie.core.jit import device_function
from coterie.core.settings import Settings
from coterie.core.text import TextCodec
from coterie.core.types import Array, Box
from coterie.core.validation import whole, within
from coterie.worlds.boards.bits import popcount
from coterie.worlds.boards.board import BoardText, BoardWorld, board_line, grid_symmetries
from coterie.worlds.boards.render import board_text, cell_names

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

SIZES = (4, 6, 8)
# A position is [player to move, discs of player 0, discs of player 1, size]. Functions make the sets of cells unsigned:
# the last cell of 8 × 8 is the sign bit of a position's entry.
_ONE = np.uint64(1)
_NONE = np.uint64(0)


def _cells(size: int, columns: range) -> int:
    return sum(1 << size * row + column for row in range(size) for column in columns)


# by size: all cells; all but the first column; all but the last column; the corners
_ALL = np.array([_cells(size, range(size)) for size in range(9)], np.uint64)
_NOT_FIRST = np.array([_cells(size, range(1, size)) for size in range(9)], np.uint64)
_NOT_LAST = np.array([_cells(size, range(size - 1)) for size in range(9)], np.uint64)
_CORNERS = np.array(
    [sum({1 << 0, 1 << s - 1, 1 << s * (s - 1), 1 << s * s - 1}) if s > 1 else 0 for s in range(9)], np.uint64
)


@device_function
def _shift(cells: np.uint64, direction: int, size: int) -> np.uint64:
    """The neighbours of cells in one of eight directions."""
    if direction == 0:
        return (cells & _NOT_LAST[size]) << _ONE
    if direction == 1:
        return (cells & _NOT_FIRST[size]) >> _ONE
    if direction == 2:
        return (cells << np.uint64(size)) & _ALL[size]
    if direction == 3:
        return cells >> np.uint64(size)
    if direction == 4:
        return ((cells & _NOT_LAST[size]) << np.uint64(size + 1)) & _ALL[size]
    if direction == 5:
        return (cells & _NOT_FIRST[size]) >> np.uint64(size + 1)
    if direction == 6:
        return ((cells & _NOT_FIRST[size]) << np.uint64(size - 1)) & _ALL[size]
    return (cells & _NOT_LAST[size]) >> np.uint64(size - 1)


@device_function
def _moves(own: np.uint64, others: np.uint64, size: int) -> np.uint64:
    """Free cells where a disc of `own` flips some of `others`."""
    free = _ALL[size] & ~(own | others)
    found = _NONE
    for direction in range(8):
        line = _shift(own, direction, size) & others
        for _ in range(size - 3):
            line |= _shift(line, direction, size) & others
        found |= _shift(line, direction, size) & free
    return found


@device_function
def _flipped(own: np.uint64, others: np.uint64, cell: np.uint64, size: int) -> np.uint64:
    """The discs of `others` that a disc of `own` on a cell flips."""
    found = _NONE
    for direction in range(8):
        line = _NONE
        at = _shift(cell, direction, size)
        while at & others:
            line |= at
            at = _shift(at, direction, size)
        if at & own:
            found |= line
    return found


@device_function
def _sides(position: Array) -> tuple[np.uint64, np.uint64]:
    """Discs of the player to move, and of its opponent."""
    return np.uint64(position[1 + position[0]]), np.uint64(position[2 - position[0]])


def legal(position: Array, mask: Array) -> None:
    size = position[3]
    own, others = _sides(position)
    moves = _moves(own, others, size)
    for cell in range(size * size):
        mask[cell] = (moves >> np.uint64(cell)) & _ONE != _NONE
    mask[size * size] = moves == _NONE and _moves(others, own, size) != _NONE


def apply(position: Array, action: int) -> None:
    size, mover = position[3], position[0]
    if action < size * size:
        own, others = _sides(position)
        cell = _ONE << np.uint64(action)
        flipped = _flipped(own, others, cell, size)
        position[1 + mover] = np.int64(own | flipped | cell)
        position[2 - mover] = np.int64(others & ~flipped)
    position[0] = 1 - mover


def outcome(position: Array, payoffs: Array) -> bool:
    own, others = _sides(position)
    payoffs[0] = payoffs[1] = 0.0
    if _moves(own, others, position[3]) or _moves(others, own, position[3]):
        return False
    margin = popcount(position[1]) - popcount(position[2])
    if margin != 0:
        winner = 0 if margin > 0 else 1
        payoffs[winner] = 1.0
        payoffs[1 - winner] = -1.0
    return True


def observe(position: Array, values: Array) -> None:
    own, others = _sides(position)
    cells = position[3] * position[3]
    for cell in range(cells):
        values[cell] = np.float32((own >> np.uint64(cell)) & _ONE)
        values[cells + cell] = np.float32((others >> np.uint64(cell)) & _ONE)


def estimate(position: Array) -> float:
    """Corners, mobility and, towards the end, discs."""
    size = position[3]
    own, others = _sides(position)
    mine, theirs = popcount(own), popcount(others)
    filled = (mine + theirs) / (size * size)
    corners = popcount(own & _CORNERS[size]) - popcount(others & _CORNERS[size])
    mobility = popcount(_moves(own, others, size)) - popcount(_moves(others, own, size))
    score = 0.5 * corners + 0.08 * (1.0 - filled) * mobility + 0.06 * filled * filled * (mine - theirs)
    return score / (1.0 + abs(score))


RULES = compile_rules(legal, apply, outcome, observe)
ESTIMATE = compile_estimate(estimate)


@functools.cache
def othello_game(size: int) -> CompiledGame:
    """The game on a square board."""
    middle = size // 2
    light, dark = (
        (1 << size * (middle - 1) + middle - 1) | (1 << size * middle + middle),
        (1 << size * (middle - 1) + middle) | (1 << size * middle + middle - 1),
    )
    return CompiledGame(
        name=f"othello{size}",
        actions=size * size + 1,
        start=np.array([0, dark, light, size]),
        observation=Box((2, size, size), 0.0, 1.0),
        max_moves=2 * (size * size - 4),  # after every pass, the opponent puts a disc
        rules=RULES,
        text=lambda position: board_text(_marks(position)),
        # the half turn and the two reflections in a diagonal leave the first position as it is; the others do not
        symmetries=grid_symmetries(size, size, planes=2, kept=(0, 2, 5, 7), passes=1),
        estimate=ESTIMATE,
    )


def _marks(position: Array) -> Array:
    size = int(position[3])
    own, others = (position[1:3, None].astype(np.uint64) >> np.arange(size * size, dtype=np.uint64)) & _ONE > 0
    return np.where(own, 0, np.where(others, 1, -1)).reshape(size, size)


@dataclass(frozen=True)
class OthelloSettings(Settings):
    """The board, what the players observe, and how games begin."""

    size: Literal[4, 6, 8] = 6  # rows and columns
    observation: Literal["vector", "planes"] = "vector"  # a row of numbers, or [2, size, size]: own discs, opponent's
    opening_moves: int = 0  # random moves before the players' first, drawn anew for every game

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size must be 4, 6 or 8, got {self.size!r}")
        if self.observation not in ("vector", "planes"):
            raise ValueError(f"observation must be 'vector' or 'planes', got {self.observation!r}")
        whole("opening_moves", self.opening_moves)
        within("opening_moves", self.opening_moves, 0, self.size * self.size // 2)


class Othello(BoardWorld):
    """N games of Othello; an action is a cell, or the pass. A player observes its own discs, then its opponent's."""

    expert_depth = 3

    def __init__(self, settings: OthelloSettings, num_envs: int) -> None:
        choices = (*cell_names(settings.size, settings.size), "pass")
        super().__init__(
            settings,
            num_envs,
            othello_game(settings.size),
            settings.observation,
            opening_moves=settings.opening_moves,
            choices=choices,
        )

    def standing(self, position: Array) -> str:
        discs = (self.marks(position) == np.array([[[0]], [[1]]])).sum(axis=(1, 2))
        return f"{super().standing(position)}; {discs[0]} : {discs[1]} discs"

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the game."""
        return OthelloText(self, agent_type)


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """Othello as a PettingZoo AEC environment; `settings` are those of `OthelloSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(Othello, OthelloSettings, "othello", render_mode, settings)


class OthelloText(BoardText):
    """Describes boards, and for each legal cell how many discs it flips."""

    prompt = "othello"

    def describe_board(self, own: Array, others: Array) -> str:
        size = own.shape[0]
        bits = 1 << np.arange(size * size, dtype=np.uint64)
        mine, theirs = (np.uint64(bits[discs.ravel()].sum()) for discs in (own, others))
        moves = _moves(mine, theirs, size)
        flips = [
            f"{self.choices[cell]} flips {popcount(_flipped(mine, theirs, bits[cell], size))}"
            for cell in range(size * size)
            if int(moves) >> cell & 1
        ]
        return f"You are X: {board_line(own, others)}. {', '.join(flips) or 'You must pass'}."
