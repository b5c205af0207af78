"""Images and text renderings of the particle worlds, in NumPy alone.

The square from −1 to 1, where episodes start, is lighter; the image zooms out to show agents outside.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array
from coterie.core.world import Sign
from coterie.worlds.drawing import AGENT_COLOURS, blend, rgb
from coterie.worlds.mpe.kernels import COAST, ParticleState, Rules

PIXELS = 384  # along each side
_VIEW = 1.2  # smallest half width of the visible plane
_ROWS, _COLUMNS = 25, 49  # of the text, whose characters are twice as high as wide
_OUTSIDE = np.array([226, 223, 215], np.float32)
_PAPER = np.array([250, 248, 243], np.float32)
_INK = np.array([60, 62, 70], np.float32)
_STONE = np.array([116, 120, 130], np.float32)
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def frame(particles: ParticleState, rules: Rules, copy: int) -> Array:
    """An image of one copy, `[384, 384, 3]` uint8; a line shows where each agent would coast to."""
    position, landmarks = particles.position[copy], particles.landmarks[copy]
    agents, view = len(position), _half_width(particles, rules, copy)
    across = ((np.arange(PIXELS) + 0.5) / PIXELS * 2 - 1) * view
    x, y = np.meshgrid(across.astype(np.float32), -across.astype(np.float32))
    pixel = 2 * view / PIXELS
    picture = np.empty((PIXELS, PIXELS, 3), np.float32)
    picture[:] = _OUTSIDE
    blend(picture, (np.maximum(np.abs(x), np.abs(y)) - 1) / pixel, _PAPER)
    for k, centre in enumerate(landmarks):
        disc = (np.hypot(x - centre[0], y - centre[1]) - rules.size[agents + k]) / pixel
        blend(picture, disc, _STONE if rules.tag else _INK)
    for a, centre in enumerate(position):
        colour = _colour(a, rules)
        disc = (np.hypot(x - centre[0], y - centre[1]) - rules.size[a]) / pixel
        blend(picture, disc, 0.6 * colour, 0.85)
        blend(picture, disc + 2, colour, 0.85)
    if not rules.tag:  # landmarks are smaller than agents: outline those that agents cover
        for centre in landmarks:
            blend(picture, np.abs(np.hypot(x - centre[0], y - centre[1]) - rules.size[-1]) / pixel - 1, _INK)
    for centre, velocity in zip(position, particles.velocity[copy], strict=True):
        blend(picture, _segment(x, y, centre, centre + COAST * velocity) / pixel - 1.2, _INK)
    return np.rint(picture).astype(np.uint8)


def ansi(particles: ParticleState, rules: Rules, copy: int) -> str:
    """One copy as text: agents `0`, `1`, …, adversaries `A`, `B`, …, several `+`, landmarks `*`, obstacles `#`.

    Agents outside are drawn at the border.
    """
    agents = particles.position.shape[1]
    signs = np.full((_ROWS, _COLUMNS), ".")
    signs[:, 1::2] = " "
    rows, columns = np.mgrid[0:_ROWS, 0:_COLUMNS]
    x, y = (columns / (_COLUMNS - 1) * 2 - 1) * _VIEW, (1 - rows / (_ROWS - 1) * 2) * _VIEW
    for k, centre in enumerate(particles.landmarks[copy]):
        if rules.tag:
            signs[np.hypot(x - centre[0], y - centre[1]) < rules.size[agents + k]] = "#"
        signs[_cell(centre)] = "#" if rules.tag else "*"
    taken: set[tuple[int, int]] = set()
    for a, centre in enumerate(particles.position[copy]):
        good = a - rules.adversaries
        sign = _CAPITALS[a % len(_CAPITALS)] if good < 0 else _LETTERS[good % len(_LETTERS)]
        cell = _cell(centre)
        signs[cell] = "+" if cell in taken else sign
        taken.add(cell)
    return "\n".join([f"step {particles.time[copy]}", *("".join(row).rstrip() for row in signs)])


def legend(agents: tuple[str, ...], rules: Rules) -> tuple[Sign, ...]:
    """The signs of agents and landmarks; `agents` are in the order of their rows."""
    signs = []
    for row, name in enumerate(agents):
        hunts = row < rules.adversaries
        own = row - rules.adversaries
        text = _CAPITALS[row % len(_CAPITALS)] if hunts else _LETTERS[own % len(_LETTERS)]
        signs.append(Sign(text, name, rgb(_colour(row, rules))))
    thing = Sign("#", "obstacle") if rules.tag else Sign("*", "landmark", (60, 62, 70))
    return (*signs, thing, Sign("+", "several agents"))


def _colour(agent: int, rules: Rules) -> Array:
    """An agent's own colour; all adversaries have the first one."""
    return AGENT_COLOURS[max(0, agent - max(0, rules.adversaries - 1)) % len(AGENT_COLOURS)]


def _cell(centre: Array) -> tuple[int, int]:
    """The row and column of a point, clipped to the border."""
    across, up = np.clip(centre / _VIEW, -1, 1)
    return round((1 - up) / 2 * (_ROWS - 1)), round((1 + across) / 2 * (_COLUMNS - 1))


def _half_width(particles: ParticleState, rules: Rules, copy: int) -> float:
    points = np.concatenate([particles.position[copy], particles.landmarks[copy]])
    return max(_VIEW, float((np.abs(points).max(axis=1) + rules.size).max()))


def _segment(x: Array, y: Array, start: Array, end: Array) -> Array:
    """Distance of every pixel to the segment from start to end."""
    ahead = end - start
    square = float(ahead @ ahead)
    along = np.clip(((x - start[0]) * ahead[0] + (y - start[1]) * ahead[1]) / max(square, 1e-12), 0, 1)
    return np.hypot(x - start[0] - along * ahead[0], y - start[1] - along * ahead[1])
