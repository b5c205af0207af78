"""Observations of the grid world: their spaces, where each number lies in a row, and the kernels that write them.

Flat and dict observations hold the same numbers in a different order, given by a `Layout`; images are planes. An
observation never contains hidden or collected targets' positions, nor another agent's target in a race.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.jit import device_function
from coterie.core.types import Array, Box, Dict, Discrete
from coterie.nn.launch import kernel
from coterie.worlds.gridworld import phrasings
from coterie.worlds.gridworld.instructions import InstructionRules

if TYPE_CHECKING:
    from coterie.worlds.gridworld.kernels import GridState, Rules
    from coterie.worlds.gridworld.world import GridworldSettings


class Layout(NamedTuple):
    """Positions of an observation's numbers in one row; −1 for parts that are absent."""

    image: bool
    absolute: bool  # positions from the corner rather than from the agent
    gone: float  # status of a collected target
    others: tuple[int, int]  # first index and stride per agent
    visible: tuple[int, int]
    heard: tuple[int, int]  # one-hot symbols of the others
    targets: tuple[int, int]  # first index and stride per target
    status: tuple[int, int]
    walls: int
    radius: int  # of the wall patch
    own_target: bool  # each agent knows its own target only
    scaled: Array  # [2·size − 1] float32: an offset d is written as scaled[size − 1 + d]


class ObservationSpec(NamedTuple):
    """An observation space and the layout of the rows of `width` numbers that hold it."""

    space: Box | Dict
    layout: Layout
    width: int
    parts: dict[str, tuple[int, tuple[int, ...]]]  # for a dict: first index and shape of each entry
    instruction_rules: InstructionRules


def observation_spec(settings: GridworldSettings) -> ObservationSpec:
    """The observation space for the settings."""
    return {"flat": _flat, "dict": _dict, "image": _image}[settings.observation](settings)


def _layout(settings: GridworldSettings, **parts: Any) -> Layout:
    absent = {"others": (-1, 0), "visible": (-1, 0), "heard": (-1, 0), "targets": (-1, 0), "status": (-1, 0)}
    last = settings.grid_size - 1
    return Layout(
        **{"image": False, "absolute": False, "gone": 0.0, "walls": -1} | absent | parts,
        radius=settings.view or 2,
        own_target=settings.mode == "race",
        scaled=(np.arange(-last, last + 1) / last).astype(np.float32),
    )


def _sentences(settings: GridworldSettings) -> int:
    """The number of sentences, including phrasings that episodes do not draw: all lists share one observation space."""
    return 0 if settings.instructions == "none" else len(phrasings.sentences(settings.targets))


def _instruction_rules(settings: GridworldSettings, sentence: int, colours: int = -1) -> InstructionRules:
    count = 0 if settings.instructions == "none" else phrasings.PHRASINGS
    slots = (sentence, _sentences(settings)), (colours, len(phrasings.COLOURS))
    return InstructionRules(count, *phrasings.sampled_phrasings(settings.instructions), *slots)


def _flat(settings: GridworldSettings) -> ObservationSpec:
    others, limited = settings.num_agents - 1, settings.view is not None
    known = 1 if settings.mode == "race" else settings.targets
    stride = 2 + limited + settings.messages
    targets = 2 + others * stride
    walls = targets + 3 * known
    patch = (2 * (settings.view or 2) + 1) ** 2 if settings.num_obstacles else 0
    layout = _layout(
        settings,
        gone=-1.0 if limited else 0.0,  # a hidden target has status 0, so a collected one needs another value
        others=(2, stride),
        visible=(4, stride),
        heard=(4 + limited, stride),
        targets=(targets, 3),
        status=(targets + 2, 3),
        walls=walls,
    )
    width = walls + patch + _sentences(settings)
    return ObservationSpec(Box((width,), -1.0, 1.0), layout, width, {}, _instruction_rules(settings, walls + patch))


def _dict(settings: GridworldSettings) -> ObservationSpec:
    others, limited = settings.num_agents - 1, settings.view is not None
    known = 1 if settings.mode == "race" else settings.targets
    shapes: dict[str, tuple[int, ...]] = {"agent_pos": (2,), "other_pos": (others, 2)}
    if limited:
        shapes["other_visible"] = (others,)
    if settings.messages:
        shapes["other_message"] = (others, settings.messages)
    shapes |= {"target_pos": (known, 2), "target_status": (known,)}
    if settings.instructions != "none":  # the entries of a set are unordered, so they carry their colours
        shapes["target_colour"] = (known, len(phrasings.COLOURS))
    rows = tuple(tuple(key for key in shapes if key.startswith(thing)) for thing in ("other_", "target_"))
    if settings.num_obstacles:
        shapes["walls"] = ((2 * (settings.view or 2) + 1) ** 2,)
    if settings.instructions != "none":
        shapes["instruction"] = (_sentences(settings),)
    parts, width = {}, 0
    for key, shape in shapes.items():
        parts[key] = (width, shape)
        width += math.prod(shape)
    at = {key: start for key, (start, _) in parts.items()}
    layout = _layout(
        settings,
        absolute=True,
        others=(at["other_pos"], 2),
        visible=(at.get("other_visible", -1), 1),
        heard=(at.get("other_message", -1), settings.messages),
        targets=(at["target_pos"], 2),
        status=(at["target_status"], 1),
        walls=at.get("walls", -1),
    )
    entries: dict[str, Box | Discrete] = {key: Box(shape, 0.0, 1.0) for key, shape in shapes.items()}
    instruction_rules = _instruction_rules(settings, at.get("instruction", -1), at.get("target_colour", -1))
    return ObservationSpec(Dict(entries, rows), layout, width, parts, instruction_rules)


def _image(settings: GridworldSettings) -> ObservationSpec:
    shape = (5 if settings.messages else 4, settings.grid_size, settings.grid_size)
    return ObservationSpec(
        Box(shape, 0.0, 1.0), _layout(settings, image=True), math.prod(shape), {}, _instruction_rules(settings, -1)
    )


# Kernels --------------------------------------------------------------------------------------------
# Speed: kernels index whole arrays, because slicing a row costs more than writing it, and loop over agents inside,
# because every call passes all arrays of `GridState`.


@device_function
def _hidden(sight: int, down: int, across: int) -> bool:
    return sight >= 0 and max(abs(down), abs(across)) > sight


@device_function
def _observe_agents(grid: GridState, rules: Rules, layout: Layout, n: int, out: Array) -> None:
    """Write each agent's position, the positions of the agents in sight, and all symbols, also from out of sight."""
    agents, scaled = grid.agents, layout.scaled
    middle = len(scaled) // 2
    for a in range(grid.agents.shape[1]):
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
                    out[n, a, at + symbol] = 1.0 if symbol == grid.symbols[n, b] else 0.0


@device_function
def _observe_targets(grid: GridState, rules: Rules, layout: Layout, n: int, out: Array) -> None:
    """Write positions and status of the targets that each agent may see."""
    targets, scaled = grid.targets, layout.scaled
    middle = len(scaled) // 2
    for a in range(grid.agents.shape[1]):
        row, column = grid.agents[n, a, 0], grid.agents[n, a, 1]
        from_row, from_column = (0, 0) if layout.absolute else (row, column)
        first, count = (a, 1) if layout.own_target else (0, targets.shape[1])
        for i in range(count):
            k = first + i
            at, status = layout.targets[0] + i * layout.targets[1], layout.status[0] + i * layout.status[1]
            present = grid.present[n, k]
            if present and not _hidden(rules.sight, targets[n, k, 0] - row, targets[n, k, 1] - column):
                out[n, a, at] = scaled[middle + targets[n, k, 0] - from_row]
                out[n, a, at + 1] = scaled[middle + targets[n, k, 1] - from_column]
                out[n, a, status] = 1.0
            else:
                out[n, a, at] = out[n, a, at + 1] = 0.0
                out[n, a, status] = 0.0 if present else layout.gone


@device_function
def _observe_walls(grid: GridState, layout: Layout, n: int, out: Array) -> None:
    """Write the patch of walls around each agent; cells beyond the border count as walls."""
    for a in range(grid.agents.shape[1]):
        row, column = grid.agents[n, a, 0], grid.agents[n, a, 1]
        at, radius, size = layout.walls, layout.radius, grid.walls.shape[1]
        for r in range(row - radius, row + radius + 1):
            for c in range(column - radius, column + radius + 1):
                inside = 0 <= r < size and 0 <= c < size
                out[n, a, at] = 0.0 if inside and not grid.walls[n, r, c] else 1.0
                at += 1


@device_function
def _observe_image(grid: GridState, rules: Rules, layout: Layout, n: int, a: int, out: Array) -> None:
    """Write agent a's planes: itself, others, targets, obstacles, and symbols at their senders' cells."""
    agents, targets, size = grid.agents, grid.targets, rules.size
    row, column, area = agents[n, a, 0], agents[n, a, 1], size * size
    for i in range(out.shape[2]):
        out[n, a, i] = 0.0
    out[n, a, row * size + column] = 1.0
    for b in range(agents.shape[1]):
        if b == a or _hidden(rules.sight, agents[n, b, 0] - row, agents[n, b, 1] - column):
            continue
        cell = agents[n, b, 0] * size + agents[n, b, 1]
        out[n, a, area + cell] = 1.0
        if rules.messages > 0:  # the highest symbol of several senders in a cell
            symbol = np.float32((grid.symbols[n, b] + 1) / rules.messages)
            out[n, a, 4 * area + cell] = max(out[n, a, 4 * area + cell], symbol)
    for k in range(targets.shape[1]):
        known = grid.present[n, k] and (k == a or not layout.own_target)
        if known and not _hidden(rules.sight, targets[n, k, 0] - row, targets[n, k, 1] - column):
            out[n, a, 2 * area + targets[n, k, 0] * size + targets[n, k, 1]] = 1.0
    if rules.obstacles > 0:
        sight = rules.sight if rules.sight >= 0 else size
        for r in range(max(0, row - sight), min(size, row + sight + 1)):
            for c in range(max(0, column - sight), min(size, column + sight + 1)):
                out[n, a, 3 * area + r * size + c] = 1.0 if grid.walls[n, r, c] else 0.0


@kernel
def observe(n: int, grid: GridState, rules: Rules, layout: Layout, out: Array) -> None:
    """Write the observations of all agents into `out` [N, A, D]."""
    if layout.image:
        for a in range(grid.agents.shape[1]):
            _observe_image(grid, rules, layout, n, a, out)
        return
    _observe_agents(grid, rules, layout, n, out)
    _observe_targets(grid, rules, layout, n, out)
    if rules.obstacles > 0:
        _observe_walls(grid, layout, n, out)
