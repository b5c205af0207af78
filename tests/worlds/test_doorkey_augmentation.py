"""Augmentations of door-key demonstrations: the mirror image is that of the world itself, and the window is hidden."""

import numpy as np
import pytest

from coterie.core.augmentation import Decisions
from coterie.worlds.doorkey import DoorKey, DoorKeySettings
from coterie.worlds.doorkey.augmentation import HIDDEN, hide_window, mirror, mirror_image
from coterie.worlds.doorkey.observations import L_UNEXPLORED, LANDMARK_SIZE

COPIES = 24
MIRRORED = np.array([1, 0, 2, 3, 4, 5, 6])  # actions: left for right


def mirrored(state):
    """The state of the mirror image: columns in reverse, east for west."""
    agent = state["agent"].copy()
    agent[:, 1] = state["cells"].shape[2] - 1 - agent[:, 1]
    agent[:, 2] = np.array([2, 1, 0, 3])[agent[:, 2]]
    turned = {name: np.ascontiguousarray(state[name][:, :, ::-1]) for name in ("cells", "seen")}
    return state | turned | {"agent": agent}


def seen(timestep):
    return timestep.agent_types["agent"].observation[:, 0].copy()


@pytest.mark.parametrize("observe", ["view", "map", "both"])
@pytest.mark.parametrize("task", ["doorkey", "colored", "lava"])
def test_the_mirror_image_is_what_the_mirrored_world_shows(task, observe):
    one, other = (DoorKey(DoorKeySettings(task=task, size=8, observe=observe), COPIES) for _ in range(2))
    one.reset(3)
    other.load(mirrored(one.save()))
    index, sign = mirror_image(one.layout, one.rules.view_size)
    compared = np.ones(one.layout.width, bool)
    if one.layout.slots[L_UNEXPLORED] >= 0 and observe != "view":  # among equally near cells the search takes one side
        first = one.layout.landmarks + one.layout.slots[L_UNEXPLORED] * LANDMARK_SIZE
        compared[first + 1 : first + LANDMARK_SIZE] = False
    if task == "colored":  # two keys may be equally near
        compared[one.layout.landmarks : one.layout.landmarks + 2 * LANDMARK_SIZE] = observe == "view"
    random, running = np.random.default_rng(0), np.ones(COPIES, bool)
    for _ in range(40):
        actions = random.choice(7, size=(COPIES, 1), p=(0.15, 0.15, 0.4, 0.1, 0.05, 0.1, 0.05))
        images = [seen(world.step({"agent": each})) for world, each in ((one, actions), (other, MIRRORED[actions]))]
        running &= ~one._timestep.ended  # new episodes have other layouts
        found = (images[0][:, index] * sign)[running][:, compared]
        np.testing.assert_allclose(found, images[1][running][:, compared], atol=1e-6)
    assert running.sum() > COPIES // 3


def decisions(world, rows=400):
    observation = np.random.default_rng(1).uniform(0.5, 1, (rows, world.layout.width)).astype(np.float32)
    return Decisions(observation, np.arange(rows) % 7, np.zeros((rows, 0), bool))


def test_half_of_the_decisions_are_mirrored_with_their_actions():
    world = DoorKey(DoorKeySettings(task="doorkey", size=5), 1)
    given = decisions(world)
    before = given.observation.copy()
    found = mirror(given, world, np.random.default_rng(0))
    index, sign = mirror_image(world.layout, world.rules.view_size)
    turned = (found.observation == before[:, index] * sign).all(axis=1)
    assert 0.4 < turned.mean() < 0.6
    np.testing.assert_array_equal(found.observation[~turned], before[~turned])
    np.testing.assert_array_equal(found.action, np.where(turned, MIRRORED[given.action], given.action))
    np.testing.assert_array_equal(given.observation, before)
    assert found.observation.dtype == np.float32


def test_the_window_of_half_of_the_decisions_is_hidden():
    world = DoorKey(DoorKeySettings(task="doorkey", size=5), 1)
    given = decisions(world)
    found = hide_window(given, world, np.random.default_rng(0))
    window = slice(world.layout.window, None)  # the last part
    hidden = (found.observation[:, window] == 0).all(axis=1)
    assert abs(hidden.mean() - HIDDEN) < 0.1
    np.testing.assert_array_equal(found.observation[~hidden], given.observation[~hidden])
    np.testing.assert_array_equal(found.observation[:, : window.start], given.observation[:, : window.start])
    assert (given.observation > 0).all()
    with pytest.raises(ValueError, match=r"world\.observe=map"):
        hide_window(given, DoorKey(DoorKeySettings(task="doorkey", observe="view"), 1), np.random.default_rng(0))
