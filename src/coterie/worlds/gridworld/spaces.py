"""What agents of the grid world may see, as spaces, and where each number of it lies.

The numbers themselves are written in `gridworld_views.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.types import Box, Dict, Discrete
from coterie.worlds.gridworld import observations as views
from coterie.worlds.gridworld import phrasings as words
from coterie.worlds.gridworld.instructions import Telling

if TYPE_CHECKING:
    from coterie.worlds.gridworld.world import GridworldSettings


class Plan(NamedTuple):
    """An observation space and how it is cut from a row of `width` numbers."""

    space: Box | Dict
    layout: views.Layout
    width: int
    parts: dict[str, tuple[int, tuple[int, ...]]]  # for a dict: first index and shape of each entry
    telling: Telling  # what of the row speaks of instructions


def plan(settings: GridworldSettings) -> Plan:
    """The observation space that the settings ask for."""
    return {"flat": _flat, "dict": _dict, "image": _image}[settings.observation](settings)


def _layout(settings: GridworldSettings, **parts: Any) -> views.Layout:
    absent = {"others": (-1, 0), "visible": (-1, 0), "heard": (-1, 0), "targets": (-1, 0), "status": (-1, 0)}
    last = settings.grid_size - 1
    return views.Layout(
        **{"image": False, "absolute": False, "gone": 0.0, "walls": -1} | absent | parts,
        radius=settings.view or 2,
        own_target=settings.mode == "race",
        scaled=(np.arange(-last, last + 1) / last).astype(np.float32),
    )


def _sentences(settings: GridworldSettings) -> int:
    """How many instructions there are, whether they are drawn or not: a seat for wordings never heard is kept free."""
    return 0 if settings.instructions == "none" else len(words.sentences(settings.targets))


def _telling(settings: GridworldSettings, number: int, colours: int = -1) -> Telling:
    phrasings = 0 if settings.instructions == "none" else words.PHRASINGS
    places = (number, _sentences(settings)), (colours, len(words.COLOURS))
    return Telling(phrasings, *words.drawn(settings.instructions), *places)


def _flat(settings: GridworldSettings) -> Plan:
    others, limited = settings.num_agents - 1, settings.view is not None
    known = 1 if settings.mode == "race" else settings.targets
    stride = 2 + limited + settings.messages
    targets = 2 + others * stride
    walls = targets + 3 * known
    patch = (2 * (settings.view or 2) + 1) ** 2 if settings.num_obstacles else 0
    layout = _layout(
        settings,
        gone=-1.0 if limited else 0.0,  # a hidden target reads 0, so a gone one must not
        others=(2, stride),
        visible=(4, stride),
        heard=(4 + limited, stride),
        targets=(targets, 3),
        status=(targets + 2, 3),
        walls=walls,
    )
    width = walls + patch + _sentences(settings)
    return Plan(Box((width,), -1.0, 1.0), layout, width, {}, _telling(settings, walls + patch))


def _dict(settings: GridworldSettings) -> Plan:
    others, limited = settings.num_agents - 1, settings.view is not None
    known = 1 if settings.mode == "race" else settings.targets
    shapes: dict[str, tuple[int, ...]] = {"agent_pos": (2,), "other_pos": (others, 2)}
    if limited:
        shapes["other_visible"] = (others,)
    if settings.messages:
        shapes["other_message"] = (others, settings.messages)
    shapes |= {"target_pos": (known, 2), "target_status": (known,)}
    if settings.instructions != "none":  # the rows of a set have no order to tell colours by
        shapes["target_colour"] = (known, len(words.COLOURS))
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
    telling = _telling(settings, at.get("instruction", -1), at.get("target_colour", -1))
    return Plan(Dict(entries, rows), layout, width, parts, telling)


def _image(settings: GridworldSettings) -> Plan:
    shape = (5 if settings.messages else 4, settings.grid_size, settings.grid_size)
    return Plan(Box(shape, 0.0, 1.0), _layout(settings, image=True), math.prod(shape), {}, _telling(settings, -1))
