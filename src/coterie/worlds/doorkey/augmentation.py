"""Augmentations of door-key demonstrations: mirror images, and decisions without the window of the map.

Few demonstrations show few of the places where key, door and agent can be. A clone that learns them by heart goes by
the window, which tells places apart, and played greedily it is lost where that looks new. Mirrored decisions double
what it has seen; decisions without the window teach it to go by the landmarks, which are alike in many places.
"""

from __future__ import annotations

import numpy as np

from coterie.core.augmentation import Decisions
from coterie.core.types import Array
from coterie.core.world import World
from coterie.worlds.doorkey.kernels import LEFT, NUM_ACTIONS, RIGHT
from coterie.worlds.doorkey.observations import LANDMARK_SIZE, Layout
from coterie.worlds.doorkey.world import DoorKey

HIDDEN = 0.5  # share of decisions without the window
EAST, WEST = 0, 2  # in the compass


def mirror(decisions: Decisions, world: World, random: np.random.Generator) -> Decisions:
    """Half of the decisions as in the mirror image of the grid, left for right."""
    room = _door_key(world, "mirror")
    index, sign = mirror_image(room.layout, room.rules.view_size)
    actions = np.arange(NUM_ACTIONS)
    actions[[LEFT, RIGHT]] = RIGHT, LEFT
    chosen = random.random(len(decisions.action)) < 0.5
    observation = np.where(chosen[:, None], decisions.observation[:, index] * sign, decisions.observation)
    action = np.where(chosen, actions[decisions.action], decisions.action)
    return decisions._replace(observation=observation.astype(decisions.observation.dtype, copy=False), action=action)


def hide_window(decisions: Decisions, world: World, random: np.random.Generator) -> Decisions:
    """Half of the decisions without the window of the map: all its numbers are 0."""
    layout = _door_key(world, "hide_window").layout
    if layout.window < 0:
        raise ValueError("hide_window needs the map; set world.observe=map or both")
    chosen = np.flatnonzero(random.random(len(decisions.action)) < HIDDEN)
    observation = decisions.observation.copy()
    observation[chosen, layout.window : layout.window + layout.window_planes * layout.window_size**2] = 0
    return decisions._replace(observation=observation)


def mirror_image(layout: Layout, view_size: int) -> tuple[Array, Array]:
    """The mirror image of an observation is `observation[index] * sign`; index and sign are [D]."""
    index, sign = np.arange(layout.width), np.ones(layout.width, np.float32)

    def flip(first: int, planes: int, side: int) -> None:
        cells = slice(first, first + planes * side**2)
        index[cells] = index[cells].reshape(planes, side, side)[:, :, ::-1].ravel()

    if layout.sight >= 0:
        flip(layout.sight, layout.num_planes, view_size)
        index[[layout.compass + EAST, layout.compass + WEST]] = layout.compass + WEST, layout.compass + EAST
    if layout.edges >= 0:  # forward, right, back, left
        index[[layout.edges + 1, layout.edges + 3]] = layout.edges + 3, layout.edges + 1
        for first in layout.landmarks + LANDMARK_SIZE * np.arange(layout.num_landmarks):
            sign[[first + 2, first + 4]] = -1  # how far to the right, and its sign
        flip(layout.window, layout.window_planes, layout.window_size)
    return index, sign


def _door_key(world: World, name: str) -> DoorKey:
    if not isinstance(world, DoorKey):
        raise ValueError(f"{name} needs world.name=doorkey, got {type(world).__name__}")
    return world
