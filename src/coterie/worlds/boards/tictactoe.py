"""Tic-tac-toe, the smallest world in which agents take turns: rules, expert, rendering and text codec.

Cells are numbered 0 … 8 from the top left, row by row; cell c is bit c of a player's marks. The `expert` is a fair
opponent, not a perfect one: a double threat beats it; `minimax` never loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.game import CompiledGame, NoGame, compile_rules
from coterie.core.jit import device_function, jit
from coterie.core.settings import Settings
from coterie.core.text import TextCodec
from coterie.core.types import Array, Box, Tree
from coterie.core.world import World
from coterie.worlds.boards.board import BoardWorld, grid_symmetries
from coterie.worlds.boards.render import SIGNS, board_text, draw_marks

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

EMPTY = -1  # in `marks`; other cells hold the index of the player whose mark is there
CENTRE = 4
CORNERS = np.array([0, 2, 6, 8])
CELLS = np.arange(9)
LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])
LINE_BITS = (1 << LINES).sum(axis=1)
FULL = (1 << 9) - 1


# The rules: a position is [player to move, marks of player 0, marks of player 1] ---------------------------


@device_function
def _has_line(marks: int) -> bool:
    found = False
    for line in LINE_BITS:
        found |= marks & line == line
    return found


def legal(position: Array, mask: Array) -> None:
    taken = position[1] | position[2]
    for cell in range(9):
        mask[cell] = not taken >> cell & 1


def apply(position: Array, action: int) -> None:
    position[1 + position[0]] |= 1 << action
    position[0] = 1 - position[0]


def outcome(position: Array, payoffs: Array) -> bool:
    for player in range(2):
        if _has_line(position[1 + player]):
            payoffs[player] = 1.0
            payoffs[1 - player] = -1.0
            return True
    payoffs[0] = payoffs[1] = 0.0
    return bool(position[1] | position[2] == FULL)


def observe(position: Array, values: Array) -> None:
    own, others = position[1 + position[0]], position[2 - position[0]]
    for cell in range(9):
        values[cell] = own >> cell & 1
        values[9 + cell] = others >> cell & 1


def _marks(position: Array) -> Array:
    own, others = (position[1:3, None] >> CELLS) & 1 > 0
    return np.where(own, 0, np.where(others, 1, EMPTY)).reshape(3, 3)


GAME = CompiledGame(
    name="tictactoe",
    actions=9,
    start=np.zeros(3, np.int64),
    observation=Box((2, 3, 3), 0.0, 1.0),
    max_moves=9,
    rules=compile_rules(legal, apply, outcome, observe),
    text=lambda position: board_text(_marks(position)),
    symmetries=grid_symmetries(3, 3, planes=2, kept=(0, 1, 2, 3, 4, 5, 6, 7)),
)


@dataclass(frozen=True)
class TictactoeSettings(Settings):
    """Rewards of a game, and who moves first."""

    win_reward: float = 1.0  # to the player that completes a line
    draw_reward: float = 0.0  # to both when the board is full
    loss_reward: float = -1.0  # to the other player, at the time step of the winning move
    first: Literal["player_0", "random"] = "player_0"  # who moves first; "random" draws it for every game

    def __post_init__(self) -> None:
        if self.first not in ("player_0", "random"):
            raise ValueError(f"first must be 'player_0' or 'random', got {self.first!r}")
        for name in ("win_reward", "draw_reward", "loss_reward"):
            if not isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")


class Tictactoe(BoardWorld):
    """N games of tic-tac-toe. A player observes its own marks, then its opponent's."""

    def __init__(self, settings: TictactoeSettings, num_envs: int) -> None:
        rewards = (settings.win_reward, settings.draw_reward, settings.loss_reward)
        super().__init__(
            settings, num_envs, GAME, rewards=rewards, random_first=settings.first == "random", choices=CELL_NAMES
        )

    @property
    def game(self) -> CompiledGame:
        """The rules, for search; refused if the rewards are not those of a zero-sum game of one point."""
        for name, expected in (("win_reward", 1.0), ("draw_reward", 0.0), ("loss_reward", -1.0)):
            given = getattr(self.settings, name)
            if given != expected:
                raise NoGame(f"world.{name}={given}: search needs rewards of 1, 0 and −1; set it to {expected}")
        return GAME

    def why_illegal(self, action: int) -> str:
        return f"cell {action} " + ("is occupied" if 0 <= action < 9 else "is not on the board")

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the game."""
        return TictactoeText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Win, otherwise block, otherwise take the centre, a random free corner, or a random free cell."""
        self.check_agent_type(agent_type)
        actions = np.zeros((self.num_envs, 2), np.int64)
        # Every copy uses one random number, needed or not, so that games do not influence each other.
        _choose_expert_moves(self.positions(), random.random(self.num_envs), actions)
        return actions

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one game, `[192, 192, 3]` uint8; dots on free cells have the colour of the player to move."""
        position, _ = self._scene(copy, final)
        return draw_marks(_marks(position), -1 if final else int(position[0]))

    def ansi(self, copy: int, final: bool = False) -> str:
        """The board as text; free cells show their numbers."""
        position, _ = self._scene(copy, final)
        signs = [str(cell) if mark == EMPTY else SIGNS[mark] for cell, mark in enumerate(_marks(position).flat)]
        rows = [" " + " | ".join(signs[row : row + 3]) for row in (0, 3, 6)]
        return "\n---+---+---\n".join(rows) + f"\n{self.standing(position)}"


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """Tic-tac-toe as a PettingZoo AEC environment; `settings` are those of `TictactoeSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(Tictactoe, TictactoeSettings, "tictactoe", render_mode, settings)


# The expert -----------------------------------------------------------------------------------


@device_function
def _completing(marks: int, others: int) -> int:
    """A free cell that completes a line of `marks`, or -1."""
    for line in LINE_BITS:
        missing = line & ~marks
        if missing & (missing - 1) == 0 and missing & others == 0 and missing:
            for cell in range(9):
                if missing >> cell & 1:
                    return cell
    return -1


@device_function
def _pick_free(taken: int, cells: Array, uniform: float) -> int:
    """A free cell among `cells`, chosen by a uniform number in [0, 1); -1 if there is none."""
    count = 0
    for cell in cells:
        count += not taken >> cell & 1
    left = int(uniform * count)
    for cell in cells:
        if not taken >> cell & 1:
            if left == 0:
                return cell
            left -= 1
    return -1


@jit
def _choose_expert_moves(positions: Array, uniform: Array, actions: Array) -> None:
    for n in range(len(positions)):
        mover = positions[n, 0]
        own, others = positions[n, 1 + mover], positions[n, 2 - mover]
        taken = own | others
        cell = _completing(own, others)
        if cell < 0:
            cell = _completing(others, own)
        if cell < 0 and not taken >> CENTRE & 1:
            cell = CENTRE
        if cell < 0:
            cell = _pick_free(taken, CORNERS, uniform[n])
        if cell < 0:
            cell = _pick_free(taken, CELLS, uniform[n])
        actions[n, mover] = cell


# Text --------------------------------------------------------------------------------------------------

CELL_NAMES = (
    *("top left", "top middle", "top right", "middle left", "centre", "middle right"),
    *("bottom left", "bottom middle", "bottom right"),
)


class TictactoeText:
    """Describes boards; the choices are the names of cells."""

    prompt = "tictactoe"
    choices = CELL_NAMES
    idle = None

    def __init__(self, world: World, agent_type: str) -> None:
        """Boards need no settings."""

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        return [describe_board(row[:9] > 0, row[9:] > 0) for row in observation]

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """Each cell once as a winning move of the player, and once as one of the opponent."""
        text = []
        for cell in range(9):
            line = next(line for line in LINES if cell in line)
            two = np.isin(np.arange(9), line) & (np.arange(9) != cell)
            other = np.zeros(9, bool)
            other[np.flatnonzero(~np.isin(np.arange(9), line))[:2]] = True
            text += [describe_board(two, other), describe_board(other, two)]
        return text


def describe_board(own: Array, others: Array) -> str:
    """One board as a player sees it; `own` and `others` are [9] bool."""
    signs = ["X" if mine else "O" if theirs else "." for mine, theirs in zip(own, others, strict=True)]
    board = " / ".join("".join(signs[row : row + 3]) for row in (0, 3, 6))
    text = f"You are X: {board}."
    for marks, rest, words in ((own, others, "X wins at"), (others, own, "O threatens")):
        cells = [CELL_NAMES[c] for c in _completing_cells(marks, rest)]
        text += f" {words} {' and '.join(cells)}." if cells else ""
    return text if "win" in text or "threat" in text else f"{text} Free: {', '.join(_free(own | others))}."


def _completing_cells(marks: Array, others: Array) -> list[int]:
    """Free cells that complete a line."""
    found = {int(line[~marks[line]][0]) for line in LINES if marks[line].sum() == 2 and not others[line].any()}
    return sorted(found)


def _free(taken: Array) -> list[str]:
    """Free cells, the centre and the corners first."""
    return [CELL_NAMES[cell] for cell in (4, 0, 2, 6, 8, 1, 3, 5, 7) if not taken[cell]]
