"""Pictures of the grid world in NumPy alone, and the same in letters.

Shapes are blended by their signed distance to each pixel, which gives smooth edges without a drawing library.
"""

from __future__ import annotations

import numpy as np

from coterie.types import Array
from coterie.worlds.gridworld_kernels import Places

CELL = 32  # pixels along a cell
_MARGIN = 4
_PAPER = np.array([250, 248, 243], np.float32)
_SHADE = np.array([242, 239, 231], np.float32)
_FRAME = np.array([120, 116, 110], np.float32)
_WALL = np.array([84, 88, 98], np.float32)
_WALL_TOP = np.array([108, 113, 125], np.float32)
_GOLD = np.array([240, 178, 40], np.float32)
_WHITE = np.array([255, 255, 255], np.float32)
# Okabe and Ito's palette, told apart also by colour-blind people; shapes carry a digit besides.
_COLOURS = np.array(
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [140, 100, 60]], np.float32
)
# Digits on a raster of 3 × 5, one number of three bits per row.
_DIGITS = (
    (7, 5, 5, 5, 7), (2, 6, 2, 2, 7), (7, 1, 7, 4, 7), (7, 1, 7, 1, 7), (5, 5, 7, 1, 1),
    (7, 4, 7, 1, 7), (7, 4, 7, 5, 7), (7, 1, 1, 2, 2), (7, 5, 7, 5, 7), (7, 5, 7, 1, 7),
)  # fmt: skip
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def frame(places: Places, copy: int, own_targets: bool) -> Array:
    """One copy, `[height, width, 3]` uint8; with `own_targets` each target has its agent's colour."""
    size = places.walls.shape[1]
    picture = np.empty((size * CELL + 2 * _MARGIN,) * 2 + (3,), np.float32)
    picture[:] = _FRAME
    for row in range(size):
        for column in range(size):
            cell = _cell(picture, row, column)
            cell[:] = _SHADE if (row + column) % 2 else _PAPER
            if places.walls[copy, row, column]:
                _blend(cell, _box(0, 0, 14.5, 4), _WALL)
                _blend(cell, _box(0, -1.5, 12, 3), _WALL_TOP)
    for k in np.flatnonzero(places.present[copy]):
        colour = _COLOURS[k % len(_COLOURS)] if own_targets else _GOLD
        cell = _cell(picture, *places.targets[copy, k])
        _draw_target(cell, colour)
        if own_targets:
            _write_number(cell, int(k), 0.5, 1.5, zoom=1)
    _draw_agents(picture, places.agents[copy])
    return np.rint(picture).astype(np.uint8)


def ansi(places: Places, copy: int, own_targets: bool) -> str:
    """One copy in letters: two per cell, who is there (`+`: several) and whether a target is.

    `#` is a wall and `*` a target; with `own_targets` the target of agent 0 is `a`, of agent 1 `b`, …
    """
    size = places.walls.shape[1]
    who = np.where(places.walls[copy], "#", ".")
    what = np.full((size, size), " ")
    for k in np.flatnonzero(places.present[copy]):
        what[tuple(places.targets[copy, k])] = chr(ord("a") + k % 26) if own_targets else "*"
    for index, place in enumerate(places.agents[copy]):
        there = tuple(place)
        who[there] = _LETTERS[index % len(_LETTERS)] if who[there] == "." else "+"
    rows = ("".join(f"{a}{b}" for a, b in zip(*pair, strict=True)).rstrip() for pair in zip(who, what, strict=True))
    return "\n".join([f"step {places.time[copy]}", *rows])


def _cell(picture: Array, row: int, column: int) -> Array:
    top, left = _MARGIN + row * CELL, _MARGIN + column * CELL
    return picture[top : top + CELL, left : left + CELL]


# Distances run from a point (x, y) relative to the cell's centre to every pixel's centre, negative inside.
_Y, _X = np.mgrid[0:CELL, 0:CELL].astype(np.float32) - (CELL - 1) / 2


def _disc(x: float, y: float, radius: float) -> Array:
    return np.hypot(_X - x, _Y - y) - radius


def _box(x: float, y: float, half: float, corner: float) -> Array:
    across, down = np.abs(_X - x) - half + corner, np.abs(_Y - y) - half + corner
    return np.hypot(np.maximum(across, 0), np.maximum(down, 0)) + np.minimum(np.maximum(across, down), 0) - corner


def _star(radius: float) -> Array:
    """A five-pointed star: the union of its points' half-planes, folded by symmetry."""
    angle = np.arctan2(_X, -_Y)
    folded = np.abs(np.mod(angle + np.pi / 5, 2 * np.pi / 5) - np.pi / 5)
    reach = np.hypot(_X, _Y)
    px, py = reach * np.sin(folded), reach * np.cos(folded)
    inner = 0.45 * radius
    ax, ay, bx, by = 0.0, radius, inner * np.sin(np.pi / 5), inner * np.cos(np.pi / 5)
    length = np.hypot(bx - ax, by - ay)
    return ((px - ax) * (ay - by) + (py - ay) * (bx - ax)) / length


def _blend(cell: Array, distance: Array, colour: Array, opacity: float = 1.0) -> None:
    cover = (np.clip(0.5 - distance, 0, 1) * opacity)[..., None]
    cell += cover * (colour - cell)


def _draw_target(cell: Array, colour: Array) -> None:
    _blend(cell, _disc(0, 0, 13.5), colour, opacity=0.22)
    _blend(cell, _star(12.5), 0.7 * colour)
    _blend(cell, _star(10.8), colour)


def _draw_agents(picture: Array, agents: Array) -> None:
    """A disc with the agent's number; those sharing a cell are smaller and stand in a ring."""
    for row, column in np.unique(agents, axis=0):
        cell = _cell(picture, row, column)
        here = np.flatnonzero((agents == (row, column)).all(axis=1))
        alone = len(here) == 1
        for place, index in enumerate(here):
            angle = 2 * np.pi * place / len(here) - 3 * np.pi / 4
            x, y = (0.0, 0.0) if alone else (7 * np.cos(angle), 7 * np.sin(angle))
            radius = 11.0 if alone else 7.5
            colour = _COLOURS[index % len(_COLOURS)]
            _blend(cell, _disc(x + 0.8, y + 1.2, radius + 0.6), 0.3 * colour, opacity=0.35)
            _blend(cell, _disc(x, y, radius), _WHITE)
            _blend(cell, _disc(x, y, radius - 1.4), colour)
            _write_number(cell, int(index), x, y, zoom=2 if alone else 1)


def _write_number(cell: Array, number: int, x: float, y: float, zoom: int) -> None:
    """White digits centred on (x, y)."""
    digits = str(number)
    zoom = zoom if len(digits) == 1 else 1
    raster = np.zeros((5, 4 * len(digits) - 1), bool)
    for i, digit in enumerate(digits):
        for row, bits in enumerate(_DIGITS[int(digit)]):
            raster[row, 4 * i : 4 * i + 3] = [bits >> 2 & 1, bits >> 1 & 1, bits & 1]
    raster = raster.repeat(zoom, axis=0).repeat(zoom, axis=1)
    height, width = raster.shape
    top = min(max(round(CELL / 2 + y - height / 2), 0), CELL - height)
    left = min(max(round(CELL / 2 + x - width / 2), 0), CELL - width)
    cell[top : top + height, left : left + width][raster] = _WHITE
