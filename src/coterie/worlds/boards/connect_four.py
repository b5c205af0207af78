"""Connect Four: six rows, seven columns, four in a line win. Rules, estimate, text codec.

Bitboards as in most solvers: bit 7 · column + height, heights 0 … 5 from the bottom. The seventh bit of a column stays
empty, so that lines do not continue in the next column. Exact values of positions are in `connect_four_solver.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.game import CompiledGame, Symmetry, compile_estimate, compile_rules
from coterie.core.jit import device_function
from coterie.core.settings import Settings
from coterie.core.text import TextCodec
from coterie.core.types import Array, Box
from coterie.core.validation import whole, within
from coterie.worlds.boards.bits import popcount
from coterie.worlds.boards.board import BoardText, BoardWorld, board_line
from coterie.worlds.boards.render import board_text

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

ROWS, COLUMNS = 6, 7
BOTTOM = sum(1 << 7 * column for column in range(COLUMNS))
FULL = BOTTOM * ((1 << ROWS) - 1)
CHOICES = tuple(f"column {column + 1}" for column in range(COLUMNS))
MAX_OPENING = 20  # random moves at the start; nearly all longer ones would be over
LABELS = tuple(str(column + 1) for column in range(COLUMNS))
CELL_BITS = np.array([[1 << 7 * c + ROWS - 1 - r for c in range(COLUMNS)] for r in range(ROWS)])  # from the top left


def _windows() -> Array:
    """The 69 lines of four cells."""
    found = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + i * down, column + i * right) for i in range(4)]
                if all(r < ROWS and 0 <= c < COLUMNS for r, c in cells):
                    found.append(sum(int(CELL_BITS[cell]) for cell in cells))
    return np.array(found)


WINDOWS = _windows()
OPEN_LINE = np.array([0.0, 0.004, 0.02, 0.1, 1.0])  # what an open line with so many stones counts in the estimate


# The rules: a position is [player to move, stones of player 0, stones of player 1] --------------------------


@device_function
def has_four(stones: int) -> bool:
    """Whether four stones lie in a line."""
    for shift in (1, 6, 7, 8):  # vertical, both diagonals, horizontal
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> 2 * shift):
            return True
    return False


def legal(position: Array, mask: Array) -> None:
    taken = position[1] | position[2]
    for column in range(COLUMNS):
        mask[column] = not taken >> (7 * column + ROWS - 1) & 1


def apply(position: Array, action: int) -> None:
    taken = position[1] | position[2]
    column = ((1 << ROWS) - 1) << 7 * action
    position[1 + position[0]] |= (taken + (1 << 7 * action)) & column
    position[0] = 1 - position[0]


def outcome(position: Array, payoffs: Array) -> bool:
    latest = 1 - position[0]
    if has_four(position[1 + latest]):
        payoffs[latest] = 1.0
        payoffs[1 - latest] = -1.0
        return True
    payoffs[0] = payoffs[1] = 0.0
    return bool(position[1] | position[2] == FULL)


def observe(position: Array, values: Array) -> None:
    own, others = position[1 + position[0]], position[2 - position[0]]
    for row in range(ROWS):
        for column in range(COLUMNS):
            bit, cell = 7 * column + ROWS - 1 - row, row * COLUMNS + column
            values[cell] = own >> bit & 1
            values[ROWS * COLUMNS + cell] = others >> bit & 1


def estimate(position: Array) -> float:
    """Open lines: four cells with stones of one player alone, weighted by how many there are."""
    own, others = position[1 + position[0]], position[2 - position[0]]
    score = 0.0
    for window in WINDOWS:
        mine, theirs = popcount(own & window), popcount(others & window)
        if theirs == 0:
            score += OPEN_LINE[mine]
        elif mine == 0:
            score -= OPEN_LINE[theirs]
    return score / (1.0 + abs(score))


def marks(position: Array) -> Array:
    """The owner of the stone in each cell, `[rows, columns]`: 0, 1, or −1 for an empty cell."""
    return np.where(position[1] & CELL_BITS, 0, np.where(position[2] & CELL_BITS, 1, -1))


_CELLS = np.arange(2 * ROWS * COLUMNS)
_MIRRORED = Symmetry(_CELLS.reshape(2, ROWS, COLUMNS)[:, :, ::-1].ravel(), np.arange(COLUMNS)[::-1])
GAME = CompiledGame(
    name="connect_four",
    actions=COLUMNS,
    start=np.zeros(3, np.int64),
    observation=Box((2, ROWS, COLUMNS), 0.0, 1.0),
    max_moves=ROWS * COLUMNS,
    rules=compile_rules(legal, apply, outcome, observe),
    text=lambda position: board_text(marks(position), columns=LABELS),
    symmetries=(Symmetry(_CELLS, np.arange(COLUMNS)), _MIRRORED),
    estimate=compile_estimate(estimate),
)


@dataclass(frozen=True)
class ConnectFourSettings(Settings):
    """Settings of observations and of openings."""

    observation: Literal["vector", "planes"] = "vector"  # 84 numbers, or [2, 6, 7]: own stones, opponent's stones
    opening_moves: int = 0  # random moves before the players' first, drawn anew for every game

    def __post_init__(self) -> None:
        if self.observation not in ("vector", "planes"):
            raise ValueError(f"observation must be 'vector' or 'planes', got {self.observation!r}")
        whole("opening_moves", self.opening_moves)
        within("opening_moves", self.opening_moves, 0, MAX_OPENING)


class ConnectFour(BoardWorld):
    """N games of Connect Four; an action is a column. A player observes its own stones, then its opponent's."""

    expert_depth = 4

    def __init__(self, settings: ConnectFourSettings, num_envs: int) -> None:
        super().__init__(
            settings, num_envs, GAME, settings.observation, opening_moves=settings.opening_moves, choices=CHOICES
        )

    def why_illegal(self, action: int) -> str:
        return f"column {action} " + ("is full" if 0 <= action < COLUMNS else "is not on the board")

    def cell_of(self, position: Array, action: int, played: bool) -> int:
        """The highest stone of a column, or the free cell above it."""
        height = int((position[1] | position[2]) >> 7 * action & 127).bit_length()
        return (ROWS - 1 - height + played) * COLUMNS + action

    def labels(self) -> tuple[str, ...]:
        return LABELS

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the game."""
        return ConnectFourText(self, agent_type)


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """Connect Four as a PettingZoo AEC environment; `settings` are those of `ConnectFourSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(ConnectFour, ConnectFourSettings, "connect_four", render_mode, settings)


# Text --------------------------------------------------------------------------------------------------


class ConnectFourText(BoardText):
    """Describes boards and who can complete a line where; the choices are columns."""

    prompt = "connect_four"

    def describe_board(self, own: Array, others: Array) -> str:
        text = f"You are X: {board_line(own, others)}."
        bits = [int(CELL_BITS[stones].sum()) for stones in (own, others)]
        for stones, words in zip(bits, ("X wins at", "O threatens"), strict=True):
            columns = completing_columns(stones, bits[0] | bits[1])
            text += f" {words} {' and '.join(CHOICES[column] for column in columns)}." if columns else ""
        if "wins" in text or "threatens" in text:
            return text
        free = [CHOICES[column] for column in (3, 2, 4, 1, 5, 0, 6) if not (own | others)[0, column]]
        return f"{text} Free: {', '.join(free)}."


def completing_columns(stones: int, taken: int) -> list[int]:
    """Columns in which one more stone makes four in a line."""
    landing = (taken + BOTTOM) & FULL
    columns = [(column, landing & (((1 << ROWS) - 1) << 7 * column)) for column in range(COLUMNS)]
    return [column for column, cell in columns if cell and has_four(stones | cell)]
