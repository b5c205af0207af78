"""What each agent of the grid world sees, written straight into the observation arrays.

Flat and dict observations are the same numbers in a different order, told by a `Layout`; images are
planes. Nothing hidden, gone or belonging to somebody else may be read here. Spaces are declared in
`gridworld_spaces.py`. Numba's cache of `gridworld_kernels.step` does not notice changes to this file: after an edit
here, remove `__pycache__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array

if TYPE_CHECKING:
    from coterie.worlds.gridworld.kernels import Places, Rules


class Layout(NamedTuple):
    """Where an observation's numbers lie within one row; −1 for parts that are absent."""

    image: bool
    absolute: bool  # positions from the corner rather than from the agent
    gone: float  # status of a collected target
    others: tuple[int, int]  # first index and stride per agent
    visible: tuple[int, int]
    heard: tuple[int, int]
    targets: tuple[int, int]
    status: tuple[int, int]
    walls: int
    radius: int  # of the wall patch
    own_target: bool  # each agent knows its own target only
    scaled: Array  # [2·size − 1] float32: an offset d is written as scaled[size − 1 + d]


# Speed: whole arrays are indexed, since cutting a row out costs more than what is written into it, and the
# loops over agents are inside, since a call hands over all arrays of `Places`.


@njit(cache=True)
def _hidden(sight: int, down: int, across: int) -> bool:
    return sight >= 0 and max(abs(down), abs(across)) > sight


@njit(cache=True)
def _observe_agents(places: Places, rules: Rules, layout: Layout, n: int, out: Array) -> None:
    """Where each agent is, and what it sees and hears of the others.

    Symbols carry beyond sight, positions do not.
    """
    agents, scaled = places.agents, layout.scaled
    middle = len(scaled) // 2
    for a in range(places.agents.shape[1]):
        row, column = agents[n, a, 0], agents[n, a, 1]
        out[n, a, 0] = scaled[middle + row]
        out[n, a, 1] = scaled[middle + column]
        from_row, from_column = (0, 0) if layout.absolute else (row, column)
        for i in range(agents.shape[1] - 1):
            b = i if i < a else i + 1
            at = layout.others[0] + i * layout.others[1]
            hidden = _hidden(rules.sight, agents[n, b, 0] - row, agents[n, b, 1] - column)
            out[n, a, at] = 0.0 if hidden else scaled[middle + agents[n, b, 0] - from_row]
            out[n, a, at + 1] = 0.0 if hidden else scaled[middle + agents[n, b, 1] - from_column]
            if rules.sight >= 0:
                out[n, a, layout.visible[0] + i * layout.visible[1]] = 0.0 if hidden else 1.0
            if rules.messages > 0:
                at = layout.heard[0] + i * layout.heard[1]
                for symbol in range(rules.messages):
                    out[n, a, at + symbol] = 1.0 if symbol == places.symbols[n, b] else 0.0


@njit(cache=True)
def _observe_targets(places: Places, rules: Rules, layout: Layout, n: int, out: Array) -> None:
    """Where the targets are that each agent may know of."""
    targets, scaled = places.targets, layout.scaled
    middle = len(scaled) // 2
    for a in range(places.agents.shape[1]):
        row, column = places.agents[n, a, 0], places.agents[n, a, 1]
        from_row, from_column = (0, 0) if layout.absolute else (row, column)
        first, count = (a, 1) if layout.own_target else (0, targets.shape[1])
        for i in range(count):
            k = first + i
            at, status = layout.targets[0] + i * layout.targets[1], layout.status[0] + i * layout.status[1]
            present = places.present[n, k]
            if present and not _hidden(rules.sight, targets[n, k, 0] - row, targets[n, k, 1] - column):
                out[n, a, at] = scaled[middle + targets[n, k, 0] - from_row]
                out[n, a, at + 1] = scaled[middle + targets[n, k, 1] - from_column]
                out[n, a, status] = 1.0
            else:
                out[n, a, at] = out[n, a, at + 1] = 0.0
                out[n, a, status] = 0.0 if present else layout.gone


@njit(cache=True)
def _observe_walls(places: Places, layout: Layout, n: int, out: Array) -> None:
    """The patch of walls around each agent; beyond the border all is wall."""
    for a in range(places.agents.shape[1]):
        row, column = places.agents[n, a, 0], places.agents[n, a, 1]
        at, radius, size = layout.walls, layout.radius, places.walls.shape[1]
        for r in range(row - radius, row + radius + 1):
            for c in range(column - radius, column + radius + 1):
                inside = 0 <= r < size and 0 <= c < size
                out[n, a, at] = 0.0 if inside and not places.walls[n, r, c] else 1.0
                at += 1


@njit(cache=True)
def _observe_image(places: Places, rules: Rules, layout: Layout, n: int, a: int, out: Array) -> None:
    """Agent a's planes: self, others, targets, obstacles, and symbols at their senders' cells."""
    agents, targets, size = places.agents, places.targets, rules.size
    row, column, area = agents[n, a, 0], agents[n, a, 1], size * size
    out[n, a] = 0.0
    out[n, a, row * size + column] = 1.0
    for b in range(agents.shape[1]):
        if b == a or _hidden(rules.sight, agents[n, b, 0] - row, agents[n, b, 1] - column):
            continue
        cell = agents[n, b, 0] * size + agents[n, b, 1]
        out[n, a, area + cell] = 1.0
        if rules.messages > 0:  # of several senders in a cell the highest symbol shows
            symbol = np.float32((places.symbols[n, b] + 1) / rules.messages)
            out[n, a, 4 * area + cell] = max(out[n, a, 4 * area + cell], symbol)
    for k in range(targets.shape[1]):
        known = places.present[n, k] and (k == a or not layout.own_target)
        if known and not _hidden(rules.sight, targets[n, k, 0] - row, targets[n, k, 1] - column):
            out[n, a, 2 * area + targets[n, k, 0] * size + targets[n, k, 1]] = 1.0
    if rules.obstacles > 0:
        sight = rules.sight if rules.sight >= 0 else size
        for r in range(max(0, row - sight), min(size, row + sight + 1)):
            for c in range(max(0, column - sight), min(size, column + sight + 1)):
                out[n, a, 3 * area + r * size + c] = 1.0 if places.walls[n, r, c] else 0.0


@njit(cache=True)
def observe_copy(places: Places, rules: Rules, layout: Layout, n: int, out: Array) -> None:
    """Write what every agent of copy n sees now into `out[n]`, every number of it."""
    if layout.image:
        for a in range(places.agents.shape[1]):
            _observe_image(places, rules, layout, n, a, out)
        return
    _observe_agents(places, rules, layout, n, out)
    _observe_targets(places, rules, layout, n, out)
    if rules.obstacles > 0:
        _observe_walls(places, layout, n, out)


@njit(cache=True)
def observe(places: Places, rules: Rules, layout: Layout, out: Array) -> None:
    """Write what every agent of every copy sees now into `out` [N, A, D]."""
    for n in range(len(places.time)):
        observe_copy(places, rules, layout, n, out)
