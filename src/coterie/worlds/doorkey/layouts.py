"""Layouts of the door-key tasks: the cells, the full state of N copies, and how episodes start.

A cell is one number: the object, its colour and, of a door, its state, each with MiniGrid's own number. Layouts `empty`
and `doorkey` are MiniGrid's; the others are those of LLM4Teach (Zhou et al. 2023, arXiv:2311.13373): one room of random
size with locked doors in its walls, where opening a door is the goal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.core.jit import device_function
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn.launch import kernel

# Objects, colours and states of doors have MiniGrid's numbers.
UNSEEN, EMPTY, WALL_OBJECT, DOOR, KEY, GOAL_OBJECT, LAVA_OBJECT = 0, 1, 2, 4, 5, 8, 9
RED, GREEN, BLUE, YELLOW, GREY = 0, 1, 2, 4, 5
NUM_COLOURS = 6
OPEN, CLOSED, LOCKED = 0, 1, 2
WALL, GOAL, LAVA = WALL_OBJECT + 16 * GREY, GOAL_OBJECT + 16 * GREEN, LAVA_OBJECT + 16 * RED

EMPTY_ROOM, DOOR_KEY, SIMPLE, COLORED, LAVA_ROOM, TWO_DOOR = range(6)  # tasks
ROWS = np.array([0, 1, 0, -1])  # by direction: right, down, left, up
COLUMNS = np.array([1, 0, -1, 0])


class RoomState(NamedTuple):
    """The full state of N copies, random state included; what `save` stores."""

    random: Array  # [N] uint64: state of each copy's generator
    time: Array  # [N] int32: steps taken in this episode
    cells: Array  # [N, S, S] int16: the cell at row, column
    seen: Array  # [N, S, S] bool: the agent has seen the cell in this episode
    agent: Array  # [N, 3] int32: row, column, direction
    hand: Array  # [N] int16: the carried object, 0 for none


class Rules(NamedTuple):
    """The settings as the kernels read them."""

    task: int
    size: int
    min_size: int
    view_size: int
    see_through: bool  # walls do not hide what is behind them
    max_steps: int


@device_function
def object_of(cell: int) -> int:
    """The number of the object in a cell."""
    return cell & 15


@device_function
def colour_of(cell: int) -> int:
    """The number of the object's colour."""
    return (cell >> 4) & 7


@device_function
def door_state(cell: int) -> int:
    """Open, closed or locked."""
    return cell >> 7


@device_function
def make_cell(kind: int, colour: int, state: int) -> int:
    """A cell with an object."""
    return kind + 16 * colour + 128 * state


@device_function
def can_walk(cell: int) -> bool:
    """Whether the agent can enter the cell: free floor or an open door; also the goal and lava, which end episodes."""
    kind = object_of(cell)
    return kind in (EMPTY, GOAL_OBJECT, LAVA_OBJECT) or (kind == DOOR and door_state(cell) == OPEN)


@device_function
def hides(cell: int) -> bool:
    """Whether the agent cannot see what is behind the cell."""
    kind = object_of(cell)
    return kind == WALL_OBJECT or (kind == DOOR and door_state(cell) != OPEN)


@device_function
def _draw(random: Array, n: int, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(uniform(random, n) * (high - low + 1))


@device_function
def _build_room(cells: Array, height: int, width: int) -> None:
    """Free floor inside a wall; cells outside the room are free, too."""
    for row in range(cells.shape[0]):
        for column in range(cells.shape[1]):
            wall = row in (0, height - 1) or column in (0, width - 1)
            cells[row, column] = WALL if wall and row < height and column < width else EMPTY


@device_function
def _place_agent(state: RoomState, n: int, last_row: int, last_column: int) -> None:
    """Put the agent on a free cell of rows and columns 1 to the last, in a random direction."""
    while True:
        row, column = _draw(state.random, n, 1, last_row), _draw(state.random, n, 1, last_column)
        if state.cells[n, row, column] == EMPTY:
            break
    state.agent[n, 0], state.agent[n, 1] = row, column
    state.agent[n, 2] = _draw(state.random, n, 0, 3)


@device_function
def _place_object(
    state: RoomState, n: int, cell: int, last_row: int, last_column: int, kept_row: int, kept_column: int
) -> None:
    """Put an object on a free cell other than the agent's and the kept one."""
    while True:
        row, column = _draw(state.random, n, 1, last_row), _draw(state.random, n, 1, last_column)
        free = state.cells[n, row, column] == EMPTY and not (row == kept_row and column == kept_column)
        if free and not (row == state.agent[n, 0] and column == state.agent[n, 1]):
            state.cells[n, row, column] = cell
            return


@device_function
def _start_two_rooms(state: RoomState, n: int, size: int) -> None:
    """MiniGrid's DoorKey: agent and key on the left of a wall, the goal in the lower right corner."""
    cells, random = state.cells[n], state.random
    _build_room(cells, size, size)
    cells[size - 2, size - 2] = GOAL
    split = _draw(random, n, 2, size - 3)
    for row in range(size):
        cells[row, split] = WALL
    _place_agent(state, n, size - 2, split - 1)
    cells[_draw(random, n, 1, size - 3), split] = make_cell(DOOR, YELLOW, LOCKED)
    _place_object(state, n, make_cell(KEY, YELLOW, 0), size - 2, split - 1, -1, -1)


@device_function
def _wall_cell(random: Array, n: int, side: int, height: int, width: int) -> tuple[int, int]:
    """A random cell of a wall, corners excluded; sides are right, bottom, left, top."""
    if side % 2 == 0:
        return _draw(random, n, 1, height - 2), width - 1 if side == 0 else 0
    return height - 1 if side == 1 else 0, _draw(random, n, 1, width - 2)


@device_function
def _start_one_room(state: RoomState, rules: Rules, n: int) -> None:
    """A room with a locked door and its key; the cell before the door stays free of wrong keys and lava."""
    cells, random = state.cells[n], state.random
    height, width = _draw(random, n, rules.min_size, rules.size), _draw(random, n, rules.min_size, rules.size)
    _build_room(cells, height, width)
    colour = _draw(random, n, 0, NUM_COLOURS - 1)
    if rules.task == COLORED:
        colour = RED if uniform(random, n) < 0.5 else BLUE
    side = _draw(random, n, 0, 3)
    row, column = _wall_cell(random, n, side, height, width)
    cells[row, column] = make_cell(DOOR, colour, LOCKED)
    if rules.task == TWO_DOOR:
        row, column = _wall_cell(random, n, (side + 2) % 4, height, width)
        cells[row, column] = make_cell(DOOR, colour, LOCKED)
        key = _draw(random, n, height // 2 - 1, height // 2), _draw(random, n, width // 2 - 1, width // 2)
        cells[key[0], key[1]] = make_cell(KEY, colour, 0)
        _place_agent(state, n, height - 2, width - 2)
        return
    before = row - ROWS[side], column - COLUMNS[side]
    _place_agent(state, n, height - 2, width - 2)
    if rules.task == COLORED:
        _place_object(state, n, make_cell(KEY, colour, 0), height - 2, width - 2, before[0], before[1])
        other = RED + BLUE - colour
        _place_object(state, n, make_cell(KEY, other, 0), height - 2, width - 2, before[0], before[1])
        return
    _place_object(state, n, make_cell(KEY, colour, 0), height - 2, width - 2, -1, -1)
    if rules.task == LAVA_ROOM:
        _place_object(state, n, LAVA, height - 2, width - 2, before[0], before[1])


@kernel
def start_episode(n: int, state: RoomState, rules: Rules) -> None:
    """Start a new episode; the agent has seen nothing yet."""
    state.time[n] = 0
    state.hand[n] = 0
    for row in range(rules.size):
        for column in range(rules.size):
            state.seen[n, row, column] = False
    if rules.task == EMPTY_ROOM:
        _build_room(state.cells[n], rules.size, rules.size)
        state.cells[n, rules.size - 2, rules.size - 2] = GOAL
        state.agent[n, 0], state.agent[n, 1], state.agent[n, 2] = 1, 1, 0
    elif rules.task == DOOR_KEY:
        _start_two_rooms(state, n, rules.size)
    else:
        _start_one_room(state, rules, n)
