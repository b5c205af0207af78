"""Tic-tac-toe, the smallest world in which agents take turns: rules, expert, rendering and text codec.

Cells are numbered 0 … 8 from the top left, row by row. All copies are stepped in one Numba call. The `expert` is a fair
opponent, not a perfect one: a double threat beats it. Tree search is not part of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit

from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, State, TimeStep, Tree
from coterie.core.world import World, rebuild
from coterie.worlds.random import seed_copies, uniform

AGENTS = ("player_0", "player_1")
EMPTY = -1  # other cells hold the index of the player whose mark is there
CENTRE = 4
CORNERS = np.array([0, 2, 6, 8])
CELLS = np.arange(9)
LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])


@dataclass(frozen=True)
class TictactoeSettings:
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


class _Arrays(NamedTuple):
    """The state of N games and the arrays of a time step."""

    board: Array  # [N, 9] int8
    mover: Array  # [N] int8: the player to move
    random: Array  # [N] uint64: one splitmix64 state per copy
    observation: Array  # [N, 2, 18] float32
    final_observation: Array  # [N, 2, 18] float32
    mask: Array  # [N, 2, 9] bool
    acting: Array  # [N, 2] bool
    reward: Array  # [N, 2] float32
    terminated: Array  # [N, 2] bool
    ended: Array  # [N] bool


class Tictactoe:
    """N games of tic-tac-toe. A player observes its own marks, then its opponent's."""

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool = False
    state_size = 0
    draws_final = False

    def __init__(self, settings: TictactoeSettings, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.settings = settings
        self.num_envs = num_envs
        self.agent_types = {"player": AgentType(AGENTS, Box((18,), 0.0, 1.0), Discrete(9))}
        payoffs = (settings.win_reward, settings.draw_reward, settings.loss_reward)
        self._payoffs = np.array(payoffs, np.float32)
        self._random_first = settings.first == "random"
        self._arrays = _Arrays(
            board=np.empty((num_envs, 9), np.int8),
            mover=np.empty(num_envs, np.int8),
            random=np.empty(num_envs, np.uint64),
            observation=np.empty((num_envs, 2, 18), np.float32),
            final_observation=np.zeros((num_envs, 2, 18), np.float32),
            mask=np.empty((num_envs, 2, 9), np.bool_),
            acting=np.empty((num_envs, 2), np.bool_),
            reward=np.empty((num_envs, 2), np.float32),
            terminated=np.empty((num_envs, 2), np.bool_),
            ended=np.empty(num_envs, np.bool_),
        )
        agent_step = AgentStep(
            observation=self._arrays.observation,
            acting=self._arrays.acting,
            reward=self._arrays.reward,
            terminated=self._arrays.terminated,
            truncated=np.zeros((num_envs, 2), np.bool_),
            final_observation=self._arrays.final_observation,
            mask=self._arrays.mask,
        )
        self._timestep = TimeStep({"player": agent_step}, self._arrays.ended)
        self.reset(0)  # a new world is valid before its first reset

    def reset(self, seed: int) -> TimeStep:
        """Reset every game."""
        seed_copies(self._arrays.random, seed, "tictactoe")
        _start_all(self._arrays, self._random_first)
        return self._timestep

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Play one move in every copy; an illegal move raises ValueError and changes nothing."""
        cells = np.asarray(actions["player"]).astype(np.int64, casting="same_kind", copy=False)
        if cells.shape != (self.num_envs, 2):
            raise ValueError(f"actions of 'player' must have shape {(self.num_envs, 2)}, got {cells.shape}")
        copy = _find_illegal(self._arrays.board, self._arrays.mover, cells)
        if copy >= 0:
            mover = int(self._arrays.mover[copy])
            cell = int(cells[copy, mover])
            reason = "is occupied" if 0 <= cell < 9 else "is not on the board"
            raise ValueError(f"illegal move in copy {copy} by {AGENTS[mover]}: cell {cell} {reason}")
        _step(self._arrays, cells, self._payoffs, self._random_first)
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Boards, players to move and random states."""
        a = self._arrays
        return {"board": a.board.copy(), "mover": a.mover.copy(), "random": a.random.copy()}

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        if state["board"].shape != self._arrays.board.shape:
            raise ValueError(f"state holds {len(state['board'])} copies, this world has {self.num_envs}")
        self._arrays.board[:] = state["board"]
        self._arrays.mover[:] = state["mover"]
        self._arrays.random[:] = state["random"]
        _observe_all(self._arrays)
        return self._timestep

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the game."""
        return TictactoeText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Win, otherwise block, otherwise take the centre, a random free corner, or a random free cell."""
        if agent_type not in self.agent_types:
            raise ValueError(f"agent_type must be one of {sorted(self.agent_types)}, got {agent_type!r}")
        actions = np.zeros((self.num_envs, 2), np.int64)
        # Every copy uses one random number, needed or not, so that games do not influence each other.
        _choose_expert_moves(self._arrays.board, self._arrays.mover, random.random(self.num_envs), actions)
        return actions

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one game now, `[192, 192, 3]` uint8; dots on free cells have the colour of the player to move."""
        mover = int(self._arrays.mover[copy])
        tiles = [_tile(int(mark), mover) for mark in self._arrays.board[copy]]
        rows = [np.concatenate(tiles[row : row + 3], axis=1) for row in (0, 3, 6)]
        return np.concatenate(rows).astype(np.uint8)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The board as text; free cells show their numbers."""
        signs = [str(c) if s == EMPTY else "XO"[s] for c, s in enumerate(self._arrays.board[copy])]
        rows = [" " + " | ".join(signs[row : row + 3]) for row in (0, 3, 6)]
        mover = int(self._arrays.mover[copy])
        return "\n---+---+---\n".join(rows) + f"\n{AGENTS[mover]} ({'XO'[mover]}) to move"


@njit(cache=True)
def _coin(random: Array, n: int) -> int:
    return int(uniform(random, n) < 0.5)


# The rules ---------------------------------------------------------------------------------------------


@njit(cache=True)
def _find_illegal(board: Array, mover: Array, cells: Array) -> int:
    """The first copy whose move is illegal, or -1."""
    for n in range(len(board)):
        cell = cells[n, mover[n]]
        if cell < 0 or cell >= 9 or board[n, cell] != EMPTY:
            return n
    return -1


@njit(cache=True)
def _has_line(board: Array, player: int) -> bool:
    for i in range(8):
        if board[LINES[i, 0]] == player and board[LINES[i, 1]] == player and board[LINES[i, 2]] == player:
            return True
    return False


@njit(cache=True)
def _is_full(board: Array) -> bool:
    return bool(board.min() != EMPTY)


@njit(cache=True)
def _clear_board(a: _Arrays, n: int, random_first: bool) -> None:
    """Start a game on an empty board."""
    a.board[n] = EMPTY
    a.mover[n] = _coin(a.random, n) if random_first else 0


@njit(cache=True)
def _write_observation(board: Array, observation: Array) -> None:
    """Write both players' observations of one board."""
    for player in range(2):
        for cell in range(9):
            observation[player, cell] = board[cell] == player
            observation[player, 9 + cell] = board[cell] == 1 - player


@njit(cache=True)
def _observe(a: _Arrays, n: int) -> None:
    """Write observations, acting player and action masks of one copy."""
    _write_observation(a.board[n], a.observation[n])
    for player in range(2):
        moves = a.mover[n] == player
        a.acting[n, player] = moves
        for cell in range(9):
            # The row of an idle player is all legal, so that a masked softmax stays finite.
            a.mask[n, player, cell] = not moves or a.board[n, cell] == EMPTY


@njit(cache=True)
def _observe_all(a: _Arrays) -> None:
    """Write the time step of the present state, without rewards and ends."""
    a.reward[:] = 0.0
    a.terminated[:] = False
    a.ended[:] = False
    for n in range(len(a.board)):
        _observe(a, n)


@njit(cache=True)
def _start_all(a: _Arrays, random_first: bool) -> None:
    for n in range(len(a.board)):
        _clear_board(a, n, random_first)
    _observe_all(a)


@njit(cache=True)
def _step(a: _Arrays, cells: Array, payoffs: Array, random_first: bool) -> None:
    """Play one legal move per copy; `payoffs` are the rewards of a win, a draw and a loss."""
    for n in range(len(a.board)):
        player = a.mover[n]
        a.board[n, cells[n, player]] = player
        won = _has_line(a.board[n], player)
        over = won or _is_full(a.board[n])
        a.reward[n] = 0.0
        a.terminated[n] = over
        a.ended[n] = over
        if over:
            a.reward[n, player] = payoffs[0] if won else payoffs[1]
            a.reward[n, 1 - player] = payoffs[2] if won else payoffs[1]
            _write_observation(a.board[n], a.final_observation[n])
            _clear_board(a, n, random_first)
        else:
            a.mover[n] = 1 - player
        _observe(a, n)


# The expert -----------------------------------------------------------------------------------


@njit(cache=True)
def _completing(board: Array, player: int) -> int:
    """A free cell that completes a line of the player, or -1."""
    for i in range(8):
        marks, free = 0, -1
        for j in range(3):
            cell = LINES[i, j]
            marks += board[cell] == player
            free = cell if board[cell] == EMPTY else free
        if marks == 2 and free >= 0:
            return free
    return -1


@njit(cache=True)
def _pick_free(board: Array, cells: Array, uniform: float) -> int:
    """A free cell among `cells`, chosen by a uniform number in [0, 1); -1 if there is none."""
    count = 0
    for cell in cells:
        count += board[cell] == EMPTY
    left = int(uniform * count)
    for cell in cells:
        if board[cell] == EMPTY:
            if left == 0:
                return cell
            left -= 1
    return -1


@njit(cache=True)
def _choose_expert_moves(board: Array, mover: Array, uniform: Array, actions: Array) -> None:
    for n in range(len(board)):
        cell = _completing(board[n], mover[n])
        if cell < 0:
            cell = _completing(board[n], 1 - mover[n])
        if cell < 0 and board[n, CENTRE] == EMPTY:
            cell = CENTRE
        if cell < 0:
            cell = _pick_free(board[n], CORNERS, uniform[n])
        if cell < 0:
            cell = _pick_free(board[n], CELLS, uniform[n])
        actions[n, mover[n]] = cell


# Rendering --------------------------------------------------------------------------------------------

_GROUND = np.array([38, 43, 56])
_CELL = np.array([58, 66, 84])
_MARK_COLOURS = np.array([[244, 132, 95], [94, 208, 190]])  # player_0's cross, player_1's ring


def _tile(mark: int, mover: int) -> Array:
    """One cell of the board, `[64, 64, 3]`, drawn by signed distances in pixels for smooth edges."""
    x, y = np.meshgrid(np.arange(64) - 31.5, np.arange(64) - 31.5)
    radius = np.hypot(x, y)
    cell = np.hypot(np.maximum(abs(x) - 21, 0), np.maximum(abs(y) - 21, 0)) - 8
    along, across = (abs(x) + abs(y)) / np.sqrt(2), (abs(x) - abs(y)) / np.sqrt(2)
    cross = np.hypot(across, np.maximum(along - 18, 0)) - 4
    ring = abs(radius - 14.5) - 4
    picture = _paint(np.broadcast_to(_GROUND, (64, 64, 3)), cell, _CELL, 1.0)
    if mark == EMPTY:
        return _paint(picture, radius - 3, _MARK_COLOURS[mover], 0.45)
    return _paint(picture, ring if mark else cross, _MARK_COLOURS[mark], 1.0)


def _paint(picture: Array, distance: Array, colour: Array, strength: float) -> Array:
    """Blend in a colour where the signed `distance` to a shape is negative, with a soft edge of one pixel."""
    cover = strength * np.clip(0.5 - distance, 0, 1)[..., None]
    return picture * (1 - cover) + colour * cover


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
