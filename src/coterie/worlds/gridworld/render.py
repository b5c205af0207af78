"""Images and text renderings of the grid world, in NumPy alone.

Shapes are blended by their signed distance to each pixel, which gives smooth edges without a drawing library.
"""

from __future__ import annotations

import functools
import textwrap
from typing import NamedTuple

import numpy as np

from coterie.core.types import Array
from coterie.core.world import Sign
from coterie.worlds.gridworld.instructions import InstructionState
from coterie.worlds.gridworld.kernels import GridState
from coterie.worlds.gridworld.phrasings import COLOURS

CELL = 32  # pixels along a cell
_MARGIN = 4
_PAPER = np.array([250, 248, 243], np.float32)
_SHADE = np.array([242, 239, 231], np.float32)
_FRAME = np.array([120, 116, 110], np.float32)
_WALL = np.array([84, 88, 98], np.float32)
_WALL_TOP = np.array([108, 113, 125], np.float32)
_GOLD = np.array([240, 178, 40], np.float32)
_WHITE = np.array([255, 255, 255], np.float32)
# Okabe and Ito's colour-blind-safe palette; a digit on each agent helps as well.
_AGENT_COLOURS = np.array(
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [140, 100, 60]], np.float32
)
_TARGET_COLOURS = np.array(  # of coloured targets, in the order of `COLOURS`; each carries a letter as well
    [[208, 48, 48], [34, 145, 72], [44, 98, 210], [214, 170, 20], [136, 70, 170], [232, 122, 26]], np.float32
)
_INK = np.array([52, 50, 46], np.float32)
_BROKEN = np.array([200, 40, 40], np.float32)
# Glyphs of 3 × 5 pixels, an octal digit (three bits) per row from the top.
_GLYPHS = {
    "0": 0o75557, "1": 0o26227, "2": 0o71747, "3": 0o71717, "4": 0o55711, "5": 0o74717, "6": 0o74757, "7": 0o71122,
    "8": 0o75757, "9": 0o75717, "A": 0o25755, "B": 0o65656, "C": 0o34443, "D": 0o65556, "E": 0o74647, "F": 0o74644,
    "G": 0o34553, "H": 0o55755, "I": 0o72227, "J": 0o11152, "K": 0o55655, "L": 0o44447, "M": 0o57755, "N": 0o65555,
    "O": 0o25552, "P": 0o65644, "Q": 0o25563, "R": 0o65655, "S": 0o34216, "T": 0o72222, "U": 0o55557, "V": 0o55552,
    "W": 0o55775, "X": 0o55255, "Y": 0o55222, "Z": 0o71247, ".": 0o00002, ",": 0o00024, ":": 0o02020, " ": 0,
}  # fmt: skip
_LINE = 14  # pixels from one line of a caption to the next
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Style(NamedTuple):
    """Colours of targets: by agent, or by instruction."""

    own_targets: bool  # each target has its agent's colour
    sentences: tuple[str, ...]  # all instructions by index; if not empty, targets are coloured


def frame(grid: GridState, instruction: InstructionState, copy: int, style: Style) -> Array:
    """An image of one copy, `[height, width, 3]` uint8, with its instruction below, red once it is broken."""
    size = grid.walls.shape[1]
    side = size * CELL + 2 * _MARGIN
    lines = _lines(style.sentences, side)  # equal for all sentences, because videos have one size
    picture = np.empty((side + (_LINE * lines + _MARGIN if lines else 0), side, 3), np.float32)
    picture[:] = _FRAME
    for row in range(size):
        for column in range(size):
            cell = _cell(picture, row, column)
            cell[:] = _SHADE if (row + column) % 2 else _PAPER
            if grid.walls[copy, row, column]:
                _blend(cell, _box(0, 0, 14.5, 4), _WALL)
                _blend(cell, _box(0, -1.5, 12, 3), _WALL_TOP)
    for k in np.flatnonzero(grid.present[copy]):
        colour = _AGENT_COLOURS[k % len(_AGENT_COLOURS)] if style.own_targets else _GOLD
        cell = _cell(picture, *grid.targets[copy, k])
        _draw_target(cell, _TARGET_COLOURS[k] if style.sentences else colour)
        if style.own_targets:
            _write(cell, str(k), 0.5, 1.5, zoom=1)
        elif style.sentences:
            _write(cell, COLOURS[k][0].upper(), 0.5, 1.5, zoom=1)
    _draw_agents(picture, grid.agents[copy])
    if lines:
        ink = _BROKEN if instruction.broken[copy] else _INK
        _write_caption(picture[side:], style.sentences[instruction.sentence[copy]], ink)
    return np.rint(picture).astype(np.uint8)


def ansi(grid: GridState, instruction: InstructionState, copy: int, style: Style) -> str:
    """One copy as text, two characters per cell: the agent there (`+`: several) and the target there.

    `#` is a wall and `*` a target; with `own_targets` the target of agent 0 is `a`, of agent 1 `b`, …; with
    instructions targets are `r` (red), `g` (green), …, and the instruction is the first line.
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
    rows = ("".join(f"{a}{b}" for a, b in zip(*pair, strict=True)).rstrip() for pair in zip(who, what, strict=True))
    lines = [f"step {grid.time[copy]}"]
    if style.sentences:
        lines.append(style.sentences[instruction.sentence[copy]] + " (broken)" * int(instruction.broken[copy]))
    return "\n".join([*lines, *rows])


def legend(agents: tuple[str, ...], style: Style) -> tuple[Sign, ...]:
    """The signs of agents, targets and walls."""
    signs = []
    for index, name in enumerate(agents):
        signs.append(Sign(_LETTERS[index % len(_LETTERS)], name, _rgb(_AGENT_COLOURS[index % len(_AGENT_COLOURS)])))
    if style.own_targets:
        for index, name in enumerate(agents):
            colour = _rgb(_AGENT_COLOURS[index % len(_AGENT_COLOURS)])
            signs.append(Sign(chr(ord("a") + index % 26), f"target of {name}", colour))
    elif style.sentences:
        signs += [Sign(name[0], f"{name} target", _rgb(_TARGET_COLOURS[k])) for k, name in enumerate(COLOURS)]
    else:
        signs.append(Sign("*", "target", _rgb(_GOLD)))
    return (*signs, Sign("#", "wall", _rgb(_WALL)), Sign("+", "several agents"))


def _rgb(colour: Array) -> tuple[int, int, int]:
    red, green, blue = (int(part) for part in colour)
    return red, green, blue


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
    """Draw a disc with a number for each agent; agents that share a cell are smaller and form a ring."""
    for row, column in np.unique(agents, axis=0):
        cell = _cell(picture, row, column)
        here = np.flatnonzero((agents == (row, column)).all(axis=1))
        alone = len(here) == 1
        for place, index in enumerate(here):
            angle = 2 * np.pi * place / len(here) - 3 * np.pi / 4
            x, y = (0.0, 0.0) if alone else (7 * np.cos(angle), 7 * np.sin(angle))
            radius = 11.0 if alone else 7.5
            colour = _AGENT_COLOURS[index % len(_AGENT_COLOURS)]
            _blend(cell, _disc(x + 0.8, y + 1.2, radius + 0.6), 0.3 * colour, opacity=0.35)
            _blend(cell, _disc(x, y, radius), _WHITE)
            _blend(cell, _disc(x, y, radius - 1.4), colour)
            _write(cell, str(index), x, y, zoom=2 if alone else 1)


def _raster(text: str) -> Array:
    """The pixels `[5, width]` of a text in capital letters."""
    raster = np.zeros((5, 4 * len(text) - 1), bool)
    for i, sign in enumerate(text):
        for row in range(5):
            bits = _GLYPHS[sign] >> 3 * (4 - row)
            raster[row, 4 * i : 4 * i + 3] = [bits >> 2 & 1, bits >> 1 & 1, bits & 1]
    return raster


def _write(cell: Array, text: str, x: float, y: float, zoom: int) -> None:
    """Write white text centred on (x, y)."""
    zoom = zoom if len(text) == 1 else 1
    raster = _raster(text).repeat(zoom, axis=0).repeat(zoom, axis=1)
    height, width = raster.shape
    top = min(max(round(CELL / 2 + y - height / 2), 0), CELL - height)
    left = min(max(round(CELL / 2 + x - width / 2), 0), CELL - width)
    cell[top : top + height, left : left + width][raster] = _WHITE


def _wrap(sentence: str, width: int) -> list[str]:
    """Lines that fit into `width` pixels, with glyphs enlarged twice."""
    return textwrap.wrap(sentence.upper(), (width - 2 * _MARGIN + 2) // 8)


@functools.cache
def _lines(sentences: tuple[str, ...], width: int) -> int:
    """The number of lines of the longest sentence."""
    return max((len(_wrap(sentence, width)) for sentence in sentences), default=0)


def _write_caption(band: Array, sentence: str, ink: Array) -> None:
    """Write a sentence below the grid."""
    band[:-_MARGIN, _MARGIN:-_MARGIN] = _PAPER
    for number, line in enumerate(_wrap(sentence, band.shape[1])):
        raster = _raster(line).repeat(2, axis=0).repeat(2, axis=1)
        top = number * _LINE + 2
        band[top : top + 10, _MARGIN + 2 : _MARGIN + 2 + raster.shape[1]][raster] = ink
