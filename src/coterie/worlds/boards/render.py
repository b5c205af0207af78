"""Pictures and text of boards. `marks` `[rows, columns]` hold the player whose stone lies there, 0 or 1, or −1."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array
from coterie.worlds.drawing import write_centred

TILE = 64  # pixels
_FONT = 16  # pixels of a label's letters
SIGNS = "XO"  # of player 0 and player 1
_GROUND = np.array([38, 43, 56])
_CELL = np.array([58, 66, 84])
_LABEL = np.array([150, 160, 180])
_COLOURS = np.array([[86, 180, 233], [240, 134, 72]])  # of player 0 and player 1
COLOURS = tuple((int(r), int(g), int(b)) for r, g, b in _COLOURS)


def cell_names(rows: int, columns: int) -> tuple[str, ...]:
    """Names of all cells, row by row: column letter and row number, `a1` at the top left."""
    return tuple(f"{_letter(column)}{row + 1}" for row in range(rows) for column in range(columns))


def board_text(marks: Array, last: int = -1, columns: tuple[str, ...] | None = None) -> str:
    """The board in lines, with labels; the cell `last` is in brackets. `columns` are labels of columns."""
    rows, width = marks.shape
    labels = columns or tuple(_letter(column) for column in range(width))
    margin = "" if columns else "   "
    lines = [margin + "".join(f" {label} " for label in labels)]
    for row in range(rows):
        signs = [SIGNS[mark] if mark >= 0 else "." for mark in marks[row]]
        cells = [f"[{s}]" if row * width + c == last else f" {s} " for c, s in enumerate(signs)]
        lines.append(("" if columns else f"{row + 1:2} ") + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def draw_board(
    marks: Array, hints: list[int], mover: int, last: int = -1, columns: tuple[str, ...] | None = None
) -> Array:
    """Discs on a labelled board, `[height, width, 3]` uint8.

    Dots on the cells `hints` have the colour of the player to move; a ring marks the cell `last`.
    """
    rows, width = marks.shape
    picture = np.tile(_GROUND.astype(float), (rows * TILE, width * TILE, 1))
    for row in range(rows):
        for column in range(width):
            cell, mark = row * width + column, int(marks[row, column])
            tile = _disc(mark, mover if cell in hints else -1, cell == last)
            picture[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE] = tile
    margin = TILE // 2
    framed = np.tile(_GROUND.astype(float), (rows * TILE + 2 * margin, width * TILE + 2 * margin, 1))
    framed[margin:-margin, margin:-margin] = picture
    for column in range(width):
        label, middle = (columns or _letters(width))[column], margin + column * TILE + TILE // 2
        write_centred(framed, label, _FONT, (margin // 2, middle), _LABEL)
    for row in range(0 if columns else rows):
        write_centred(framed, str(row + 1), _FONT, (margin + row * TILE + TILE // 2, margin // 2), _LABEL)
    return framed.astype(np.uint8)


def draw_marks(marks: Array, mover: int) -> Array:
    """Crosses and rings on a board without labels; dots on free cells have the colour of the player to move, if any."""
    rows = [np.concatenate([_cross_or_ring(int(mark), mover) for mark in row], axis=1) for row in marks]
    return np.concatenate(rows).astype(np.uint8)


# Tiles, drawn by signed distances in pixels for smooth edges -----------------------------------------------

_X, _Y = np.meshgrid(np.arange(TILE) - 31.5, np.arange(TILE) - 31.5)
_RADIUS = np.hypot(_X, _Y)


def _empty() -> Array:
    cell = np.hypot(np.maximum(abs(_X) - 21, 0), np.maximum(abs(_Y) - 21, 0)) - 8
    return _paint(np.broadcast_to(_GROUND, (TILE, TILE, 3)), cell, _CELL, 1.0)


def _disc(mark: int, dot: int, last: bool) -> Array:
    if mark < 0:
        return _paint(_empty(), _RADIUS - 3, _COLOURS[dot], 0.45) if dot >= 0 else _empty()
    picture = _paint(_empty(), np.hypot(_X - 1.5, _Y - 2.5) - 23, _GROUND, 0.5)
    picture = _paint(picture, _RADIUS - 22, _COLOURS[mark], 1.0)
    picture = _paint(picture, abs(_RADIUS - 16) - 0.7, _GROUND, 0.25)
    return _paint(picture, abs(_RADIUS - 8) - 2, _GROUND, 0.9) if last else picture


def _cross_or_ring(mark: int, mover: int) -> Array:
    along, across = (abs(_X) + abs(_Y)) / np.sqrt(2), (abs(_X) - abs(_Y)) / np.sqrt(2)
    cross = np.hypot(across, np.maximum(along - 18, 0)) - 4
    ring = abs(_RADIUS - 14.5) - 4
    if mark < 0:
        return _paint(_empty(), _RADIUS - 3, _COLOURS[mover], 0.45) if mover >= 0 else _empty()
    return _paint(_empty(), ring if mark else cross, _COLOURS[mark], 1.0)


def _paint(picture: Array, distance: Array, colour: Array, strength: float) -> Array:
    """Blend in a colour where the signed `distance` to a shape is negative, with a soft edge of one pixel."""
    cover = strength * np.clip(0.5 - distance, 0, 1)[..., None]
    return np.asarray(picture * (1 - cover) + colour * cover)


def _letter(column: int) -> str:
    return chr(ord("a") + column)


def _letters(width: int) -> tuple[str, ...]:
    return tuple(_letter(column) for column in range(width))
