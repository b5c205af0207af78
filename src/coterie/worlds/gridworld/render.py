"""Images and text renderings of the grid world.

Shapes are blended by their signed distance to each pixel, which gives smooth edges without a drawing library. They are
drawn in units of 1/32 of a cell, at the size in which videos show them, so that nothing is enlarged afterwards.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from coterie.core.types import Array
from coterie.core.world import Sign
from coterie.worlds.drawing import AGENT_COLOURS, blend, line_height, rgb, wrap, write_centred, write_lines
from coterie.worlds.gridworld.instructions import InstructionState
from coterie.worlds.gridworld.kernels import GridState
from coterie.worlds.gridworld.phrasings import COLOURS

CELL = 32  # units along a cell
SMALLEST = 480  # pixels along a picture; a grid of few cells has larger ones
_MARGIN = 4  # units
_FONT = 15  # pixels of a caption's letters
_PAPER = np.array([250, 248, 243], np.float32)
_SHADE = np.array([242, 239, 231], np.float32)
_FRAME = np.array([120, 116, 110], np.float32)
_WALL = np.array([84, 88, 98], np.float32)
_WALL_TOP = np.array([108, 113, 125], np.float32)
_GOLD = np.array([240, 178, 40], np.float32)
_WHITE = np.array([255, 255, 255], np.float32)
_TARGET_COLOURS = np.array(  # of coloured targets, in the order of `COLOURS`; each carries a letter as well
    [[208, 48, 48], [34, 145, 72], [44, 98, 210], [214, 170, 20], [136, 70, 170], [232, 122, 26]], np.float32
)
_INK = np.array([52, 50, 46], np.float32)
_BROKEN = np.array([200, 40, 40], np.float32)
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Style(NamedTuple):
    """Colours of targets: by agent, or by instruction."""

    own_targets: bool  # each target has its agent's colour
    sentences: tuple[str, ...]  # all instructions by index; if not empty, targets are coloured


def zoom_of(size: int) -> int:
    """Pixels per unit for a grid of `size` cells along a side."""
    return max(-(-SMALLEST // (size * CELL + 2 * _MARGIN)), 1)


def frame(grid: GridState, instruction: InstructionState, copy: int, style: Style) -> Array:
    """An image of one copy, `[height, width, 3]` uint8, with its instruction below, red once it is broken."""
    size = grid.walls.shape[1]
    zoom = zoom_of(size)
    side, margin = (size * CELL + 2 * _MARGIN) * zoom, _MARGIN * zoom
    lines = _lines(style.sentences, side - 4 * margin)  # equal for all sentences, because videos have one size
    below = lines * line_height(_FONT) + 3 * margin if lines else 0
    picture = np.empty((side + below, side, 3), np.float32)
    picture[:] = _FRAME
    for row in range(size):
        for column in range(size):
            cell = _cell(picture, row, column, zoom)
            cell.pixels[:] = _SHADE if (row + column) % 2 else _PAPER
            if grid.walls[copy, row, column]:
                cell.blend(cell.box(0, 0, 14.5, 4), _WALL)
                cell.blend(cell.box(0, -1.5, 12, 3), _WALL_TOP)
    for k in np.flatnonzero(grid.present[copy]):
        colour = AGENT_COLOURS[k % len(AGENT_COLOURS)] if style.own_targets else _GOLD
        row, column = grid.targets[copy, k]
        cell = _cell(picture, row, column, zoom)
        _draw_target(cell, _TARGET_COLOURS[k] if style.sentences else colour)
        if style.own_targets:
            cell.write(str(k), 0, 1.5, 8)
        elif style.sentences:
            cell.write(COLOURS[k][0].upper(), 0, 1.5, 8)
    _draw_agents(picture, grid.agents[copy], zoom)
    if lines:
        ink, band = _BROKEN if instruction.broken[copy] else _INK, picture[side:-margin, margin:-margin]
        band[:] = _PAPER
        words = wrap(style.sentences[instruction.sentence[copy]], _FONT, side - 4 * margin)
        write_lines(band, words, _FONT, ink, margin)
    return np.rint(picture).astype(np.uint8)


def ansi(grid: GridState, instruction: InstructionState, copy: int, style: Style) -> str:
    """One copy as text in a frame, two characters per cell: who is there (`+`: several) and the target below them.

    `#` is a wall and `*` a target; a target where nobody is stands in their place. With `own_targets` the target of
    agent 0 is `a`, of agent 1 `b`, …; with instructions targets are `r` (red), `g` (green), …, and the instruction is
    the first line.
    """
    size = grid.walls.shape[1]
    who = np.where(grid.walls[copy], "#", ".")
    what = np.full((size, size), " ")
    for k in np.flatnonzero(grid.present[copy]):
        letter = chr(ord("a") + k % 26) if style.own_targets else COLOURS[k][0] if style.sentences else "*"
        what[tuple(grid.targets[copy, k])] = letter
    for index, cell in enumerate(grid.agents[copy]):
        there = tuple(cell)
        who[there] = _LETTERS[index % len(_LETTERS)] if who[there] == "." else "+"
    alone = (who == ".") & (what != " ")
    who, what = np.where(alone, what, who), np.where(alone, " ", what)
    rows = ("".join(f"{a}{b}" for a, b in zip(*pair, strict=True)) for pair in zip(who, what, strict=True))
    edge = "─" * (2 * size + 1)
    lines = [f"step {grid.time[copy]}"]
    if style.sentences:
        lines.append(style.sentences[instruction.sentence[copy]] + " (broken)" * int(instruction.broken[copy]))
    return "\n".join([*lines, f"┌{edge}┐", *(f"│ {row}│" for row in rows), f"└{edge}┘"])


def legend(agents: tuple[str, ...], style: Style) -> tuple[Sign, ...]:
    """The signs of agents, targets and walls."""
    signs = []
    for index, name in enumerate(agents):
        signs.append(Sign(_LETTERS[index % len(_LETTERS)], name, rgb(AGENT_COLOURS[index % len(AGENT_COLOURS)])))
    if style.own_targets:
        for index, name in enumerate(agents):
            colour = rgb(AGENT_COLOURS[index % len(AGENT_COLOURS)])
            signs.append(Sign(chr(ord("a") + index % 26), f"target of {name}", colour))
    elif style.sentences:
        signs += [Sign(name[0], f"{name} target", rgb(_TARGET_COLOURS[k])) for k, name in enumerate(COLOURS)]
    else:
        signs.append(Sign("*", "target", rgb(_GOLD)))
    return (*signs, Sign("#", "wall", rgb(_WALL)), Sign("+", "several agents"))


class _Cell(NamedTuple):
    """A part of the picture, drawn in units from its centre."""

    pixels: Array  # [CELL * zoom, CELL * zoom, 3]
    zoom: int
    x: Array  # [CELL * zoom, CELL * zoom], from the centre to the right
    y: Array  # down

    # Distances run from a point (x, y) to every pixel's centre, negative inside of a shape.

    def disc(self, x: float, y: float, radius: float) -> Array:
        return np.hypot(self.x - x, self.y - y) - radius

    def box(self, x: float, y: float, half: float, corner: float) -> Array:
        across, down = np.abs(self.x - x) - half + corner, np.abs(self.y - y) - half + corner
        return np.hypot(np.maximum(across, 0), np.maximum(down, 0)) + np.minimum(np.maximum(across, down), 0) - corner

    def star(self, radius: float) -> Array:
        """A five-pointed star: the union of its points' half-planes, folded by symmetry."""
        angle = np.arctan2(self.x, -self.y)
        folded = np.abs(np.mod(angle + np.pi / 5, 2 * np.pi / 5) - np.pi / 5)
        reach = np.hypot(self.x, self.y)
        px, py = reach * np.sin(folded), reach * np.cos(folded)
        inner = 0.45 * radius
        ax, ay, bx, by = 0.0, radius, inner * np.sin(np.pi / 5), inner * np.cos(np.pi / 5)
        length = np.hypot(bx - ax, by - ay)
        return ((px - ax) * (ay - by) + (py - ay) * (bx - ax)) / length

    def blend(self, distance: Array, colour: Array, opacity: float = 1.0) -> None:
        blend(self.pixels, distance * self.zoom, colour, opacity)

    def write(self, text: str, x: float, y: float, size: float) -> None:
        """Write white text centred on (x, y), `size` units high."""
        middle = CELL / 2
        write_centred(
            self.pixels, text, round(size * self.zoom), ((middle + y) * self.zoom, (middle + x) * self.zoom), _WHITE
        )


def _cell(picture: Array, row: int, column: int, zoom: int) -> _Cell:
    top, left = (_MARGIN + row * CELL) * zoom, (_MARGIN + column * CELL) * zoom
    return _Cell(picture[top : top + CELL * zoom, left : left + CELL * zoom], zoom, *_offsets(zoom))


@functools.cache
def _offsets(zoom: int) -> tuple[Array, Array]:
    along = (np.arange(CELL * zoom, dtype=np.float32) + 0.5) / zoom - CELL / 2
    x, y = np.meshgrid(along, along)
    return x, y


def _draw_target(cell: _Cell, colour: Array) -> None:
    cell.blend(cell.disc(0, 0, 13.5), colour, opacity=0.22)
    cell.blend(cell.star(12.5), 0.7 * colour)
    cell.blend(cell.star(10.8), colour)


def _draw_agents(picture: Array, agents: Array, zoom: int) -> None:
    """Draw a disc with a number for each agent; agents that share a cell are smaller and form a ring."""
    for row, column in np.unique(agents, axis=0):
        cell = _cell(picture, row, column, zoom)
        here = np.flatnonzero((agents == (row, column)).all(axis=1))
        alone = len(here) == 1
        for place, index in enumerate(here):
            angle = 2 * np.pi * place / len(here) - 3 * np.pi / 4
            x, y = (0.0, 0.0) if alone else (7 * np.cos(angle), 7 * np.sin(angle))
            radius = 11.0 if alone else 7.5
            colour = AGENT_COLOURS[index % len(AGENT_COLOURS)]
            cell.blend(cell.disc(x + 0.8, y + 1.2, radius + 0.6), 0.3 * colour, opacity=0.35)
            cell.blend(cell.disc(x, y, radius), _WHITE)
            cell.blend(cell.disc(x, y, radius - 1.4), colour)
            cell.write(str(index), x, y, 1.3 * radius if index < 10 else radius)


@functools.cache
def _lines(sentences: tuple[str, ...], width: int) -> int:
    """The number of lines of the longest sentence."""
    return max((len(wrap(sentence, _FONT, width)) for sentence in sentences), default=0)
