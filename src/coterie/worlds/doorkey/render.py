"""Images and text renderings of the door-key tasks, in NumPy alone; what the agent has not seen is in fog."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array
from coterie.core.world import Sign
from coterie.worlds.doorkey.layouts import (
    DOOR,
    EMPTY,
    GOAL_OBJECT,
    KEY,
    LAVA_OBJECT,
    LOCKED,
    OPEN,
    WALL_OBJECT,
    RoomState,
    colour_of,
    door_state,
    object_of,
)
from coterie.worlds.drawing import blend, rgb

CELL = 32  # pixels along a cell
_FLOOR = np.array([250, 248, 243], np.float32)
_LINES = np.array([226, 222, 212], np.float32)
_WALL = np.array([84, 88, 98], np.float32)
_WALL_TOP = np.array([108, 113, 125], np.float32)
_FOG = np.array([58, 62, 72], np.float32)
_GOAL = np.array([96, 190, 110], np.float32)
_LAVA = np.array([232, 106, 30], np.float32)
_EMBER = np.array([255, 196, 70], np.float32)
_AGENT = np.array([200, 40, 48], np.float32)
_DARK = np.array([40, 38, 36], np.float32)
_COLOURS = np.array(  # red, green, blue, purple, yellow, grey
    [[208, 48, 48], [34, 145, 72], [44, 98, 210], [136, 70, 170], [222, 178, 20], [120, 120, 124]], np.float32
)
_FOG_OPACITY = 0.72
_INITIALS = "rgbpya"  # of the colours; a: grey
_ARROWS = ">v<^"
# Pixel centres relative to the cell's centre.
_Y, _X = np.mgrid[0:CELL, 0:CELL].astype(np.float32) - (CELL - 1) / 2


def frame(state: RoomState, copy: int) -> Array:
    """An image of one copy, `[height, width, 3]` uint8; below the grid, what the agent holds."""
    cells, seen = state.cells[copy], state.seen[copy]
    size = len(cells)
    picture = np.empty(((size + 1) * CELL, size * CELL, 3), np.float32)
    picture[:] = _FLOOR
    for row in range(size):
        for column in range(size):
            tile = picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
            _draw_cell(tile, int(cells[row, column]))
            if not seen[row, column]:
                tile += _FOG_OPACITY * (_FOG - tile)
    row, column, direction = (int(value) for value in state.agent[copy])
    _draw_agent(picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL], direction)
    band = picture[size * CELL :]
    band[:2] = _WALL
    if state.hand[copy]:
        _draw_key(band[:, :CELL], _COLOURS[colour_of(state.hand[copy])])
    return np.rint(picture).astype(np.uint8)


def legend(agent: str) -> tuple[Sign, ...]:
    """The signs of the agent, which point where it looks, and of what lies in the rooms."""
    signs = [Sign(arrow, agent, rgb(_AGENT)) for arrow in _ARROWS]
    things = {"k": "key", "D": "locked door", "d": "closed door", "/": "open door"}
    signs += [Sign(text, meaning, (44, 98, 210)) for text, meaning in things.items()]
    signs += [Sign("G", "goal", (60, 150, 80)), Sign("~", "lava", (232, 106, 30)), Sign("?", "not seen yet")]
    return (*signs, Sign("#", "wall"), Sign("", "band below the grid: what the agent holds"))


def ansi(state: RoomState, copy: int) -> str:
    """One copy as text, two characters per cell: a sign, and for keys and doors the first letter of the colour.

    `#` wall, `k` key, `D` locked door, `d` closed door, `/` open door, `G` goal, `~` lava, `>v<^` the agent; `?` has
    not been seen. Grey is `a`.
    """
    cells, seen = state.cells[copy], state.seen[copy]
    rows = []
    for row in range(len(cells)):
        signs = [_sign(int(cells[row, column])) if seen[row, column] else "? " for column in range(len(cells))]
        if row == state.agent[copy, 0]:
            signs[state.agent[copy, 1]] = _ARROWS[state.agent[copy, 2]] + " "
        rows.append("".join(signs).rstrip())
    hand = _sign(int(state.hand[copy])) if state.hand[copy] else "nothing"
    return "\n".join([f"step {state.time[copy]}, holds {hand}", *rows])


def _sign(cell: int) -> str:
    kind = object_of(cell)
    if kind == KEY:
        return "k" + _INITIALS[colour_of(cell)]
    if kind == DOOR:
        return ("/" if door_state(cell) == OPEN else "D" if door_state(cell) == LOCKED else "d") + _INITIALS[
            colour_of(cell)
        ]
    return {EMPTY: ". ", WALL_OBJECT: "# ", GOAL_OBJECT: "G ", LAVA_OBJECT: "~ "}[kind]


def _disc(x: float, y: float, radius: float) -> Array:
    return np.hypot(_X - x, _Y - y) - radius


def _box(x: float, y: float, half_width: float, half_height: float) -> Array:
    return np.maximum(np.abs(_X - x) - half_width, np.abs(_Y - y) - half_height)


def _draw_cell(tile: Array, cell: int) -> None:
    tile[:] = _FLOOR
    tile[-1:], tile[:, -1:] = _LINES, _LINES
    kind, colour = object_of(cell), _COLOURS[colour_of(cell) % len(_COLOURS)]
    if kind == WALL_OBJECT:
        tile[:] = _WALL
        blend(tile, _box(0, -1, 13.5, 12.5), _WALL_TOP)
    elif kind == GOAL_OBJECT:
        blend(tile, _box(0, 0, 14, 14), _GOAL)
        blend(tile, _box(0, 0, 8, 8), _FLOOR, 0.45)
        blend(tile, _box(0, 0, 4, 4), _GOAL)
    elif kind == LAVA_OBJECT:
        tile[:] = _LAVA
        for line in (-8.0, 0.0, 8.0):
            blend(tile, np.abs(_Y - line - 2.5 * np.sin(_X * np.pi / 8)) - 1.4, _EMBER)
    elif kind == KEY:
        _draw_key(tile, colour)
    elif kind == DOOR:
        _draw_door(tile, door_state(cell), colour)


def _draw_key(tile: Array, colour: Array) -> None:
    for shade, grow in ((0.55 * colour, 1.2), (colour, 0.0)):
        blend(tile, np.abs(_disc(0, -6.5, 5.0)) - 1.6 - grow, shade)
        blend(tile, _box(0, 4.5, 1.6 + grow, 7.5 + grow), shade)
        blend(tile, _box(3.2, 6.0, 2.6 + grow, 1.2 + grow), shade)
        blend(tile, _box(3.2, 10.6, 2.6 + grow, 1.2 + grow), shade)


def _draw_door(tile: Array, state: int, colour: Array) -> None:
    if state == OPEN:
        blend(tile, _box(13, 0, 3, 16), colour)
        blend(tile, _box(-14.5, 0, 1.5, 16), 0.6 * colour)
        return
    tile[:] = 0.6 * colour
    blend(tile, _box(0, 0, 13, 13), colour)
    if state == LOCKED:
        blend(tile, _disc(0, -2.5, 4.2), _DARK)
        blend(tile, _box(0, 3.5, 1.8, 5.5), _DARK)
    else:
        blend(tile, _disc(8.5, 0, 2.6), _DARK)


def _draw_agent(tile: Array, direction: int) -> None:
    """Draw a triangle that points in the direction."""
    ahead, side = ((_X, _Y), (_Y, -_X), (-_X, -_Y), (-_Y, _X))[direction]
    triangle = np.maximum(-ahead - 9, (np.abs(side) * 2 + ahead - 12) / np.sqrt(5))
    blend(tile, triangle - 1.6, 0.5 * _AGENT)
    blend(tile, triangle, _AGENT)
