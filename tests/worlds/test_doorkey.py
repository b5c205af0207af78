"""The door-key tasks: settings, MiniGrid's rules step by step, layouts, the map, and rendering."""

import gymnasium
import minigrid  # noqa: F401  # registers its environments
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core.grid import Grid
from pettingzoo.test import parallel_api_test

from coterie.testing import check_world
from coterie.worlds.doorkey import DoorKey, DoorKeySettings, parallel_env, single_env
from coterie.worlds.doorkey.layouts import BLUE, DOOR, EMPTY, KEY, LAVA, RED, WALL
from coterie.worlds.doorkey.world import TASKS

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
FAMILY = ("simple", "colored", "lava", "two_door")


def make(num_envs=1, **settings):
    world = DoorKey(DoorKeySettings(**settings), num_envs)
    world.reset(0)
    return world


def step(world, action):
    timestep = world.step({"agent": np.full((world.num_envs, 1), action)})
    own = timestep.agent_types["agent"]
    return own.reward[0, 0], bool(own.terminated[0, 0]), bool(own.truncated[0, 0])


# Settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"task": "maze"}, "task must be one of empty, doorkey, simple, colored, lava, two_door, got 'maze'"),
        ({"observe": "all"}, "observe must be one of view, map, both, got 'all'"),
        ({"task": "doorkey", "size": 4}, "size must be at least 5, got 4"),
        ({"size": 7.0}, "size must be a whole number, got 7.0"),
        ({"view_size": 4}, "view_size must be odd.*got 4"),
        ({"map_size": 1}, "map_size must be at least 3, got 1"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1, got 0"),
        ({"min_size": 8, "size": 6}, r"min_size must be at most size \(6\), got 8"),
        ({"task": "doorkey", "min_size": 5}, "min_size is not used in task 'doorkey', got 5"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        DoorKeySettings(**fields)


def test_defaults_depend_on_the_task():
    chosen = {task: DoorKeySettings(task=task).rules for task in TASKS}
    assert {task: (r.size, r.min_size, r.view_size, r.max_steps) for task, r in chosen.items()} == {
        "empty": (8, 8, 7, 256),
        "doorkey": (8, 8, 7, 640),
        "simple": (10, 5, 3, 150),
        "colored": (10, 5, 3, 150),
        "lava": (10, 5, 3, 150),
        "two_door": (20, 20, 3, 150),
    }


def test_an_illegal_action_changes_nothing():
    world = make(2)
    before = world.save()
    with pytest.raises(ValueError, match="copy 1: an action must be 0 to 6, got 7"):
        world.step({"agent": np.array([[2], [7]])})
    assert all(np.array_equal(before[name], array) for name, array in world.save().items())


# MiniGrid's rules -----------------------------------------------------------------------------------


def compare_with_minigrid(env, world, episodes, opens=False, seed=0):
    """Play random actions from MiniGrid's layouts in both; `opens`: opening a door ends the episode in ours."""
    random = np.random.default_rng(seed)
    steps = 0
    for episode in range(episodes):
        seen, _ = env.reset(seed=seed + episode)
        world.set_layout(0, env.unwrapped.grid.encode(), env.unwrapped.agent_pos, env.unwrapped.agent_dir)
        for _ in range(world.rules.max_steps):
            assert np.array_equal(world.image(0), seen["image"])
            assert world.state.agent[0, 2] == seen["direction"]
            action = int(random.choice(7, p=[0.15, 0.15, 0.3, 0.15, 0.05, 0.15, 0.05]))
            seen, reward, terminated, truncated, _ = env.step(action)
            if opens and action == TOGGLE and "open" in map(door_states, env.unwrapped.grid.grid):
                terminated, reward = True, env.unwrapped._reward()
            ours = step(world, action)
            steps += 1
            # MiniGrid truncates also an episode that succeeds in its last step.
            assert ours == (pytest.approx(reward), terminated, truncated and not terminated)
            if terminated or truncated:
                break
    return steps


def door_states(thing):
    return "open" if thing is not None and thing.type == "door" and thing.is_open else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "size"),
    [
        ("Empty-5x5", "empty", 5),
        ("DoorKey-5x5", "doorkey", 5),
        ("DoorKey-6x6", "doorkey", 6),
        ("DoorKey-8x8", "doorkey", 8),
    ],
)
def test_every_step_is_minigrids(name, task, size):
    env = gymnasium.make(f"MiniGrid-{name}-v0").unwrapped
    assert compare_with_minigrid(env, make(task=task, size=size), episodes=12) > 300


@pytest.mark.slow
@pytest.mark.parametrize("task", FAMILY)
def test_layouts_of_our_own_follow_minigrids_rules(task):
    """MiniGrid's engine plays our layouts, with our view."""
    starts, world = make(12, task=task), make(task=task)
    world.rules = starts.rules
    size = starts.rules.size

    class Ours(type(gymnasium.make("MiniGrid-Empty-5x5-v0").unwrapped)):
        def _gen_grid(self, width, height):
            copy = self.copy
            code = starts.state.cells[copy].T
            self.grid, _ = Grid.decode(np.stack([code & 15, code >> 4 & 7, code >> 7], axis=-1).astype(np.uint8))
            row, column, self.agent_dir = map(int, starts.state.agent[copy])
            self.agent_pos, self.copy = (column, row), copy + 1

    env = Ours(size=size, max_steps=150, agent_view_size=3)
    env.see_through_walls, env.copy = False, 0
    assert compare_with_minigrid(env, world, episodes=12, opens=True) > 300


def test_doors_keys_and_the_reward_by_hand():
    world = make(task="doorkey", size=5)
    grid = Grid(5, 5)
    grid.wall_rect(0, 0, 5, 5)
    encoded = grid.encode()
    encoded[2, 1:4] = (2, 5, 0)  # a wall down the middle
    encoded[2, 2], encoded[1, 3], encoded[3, 3] = (4, 4, 2), (5, 4, 0), (8, 1, 0)
    world.set_layout(0, encoded, (1, 2), 0)
    assert step(world, TOGGLE) == (0, False, False)
    assert world.state.cells[0, 2, 2] >> 7 == 2  # locked without the key
    for action in (RIGHT, PICK_UP, LEFT, TOGGLE, FORWARD, FORWARD, RIGHT):
        assert step(world, action) == (0, False, False)
    assert world.state.agent[0].tolist() == [2, 3, 1]
    assert step(world, FORWARD) == (pytest.approx(1 - 0.9 * 9 / 250), True, False)


# Layouts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_layouts_hold_what_the_task_needs(task):
    world = make(300, task=task)
    kinds, state = world.state.cells & 15, world.state
    count = {kind: (kinds == kind).sum(axis=(1, 2)) for kind in (KEY, DOOR, 8, 9)}
    expected = {
        "empty": (0, 0, 1, 0),
        "doorkey": (1, 1, 1, 0),
        "simple": (1, 1, 0, 0),
        "colored": (2, 1, 0, 0),
        "lava": (1, 1, 0, 1),
        "two_door": (1, 2, 0, 0),
    }[task]
    for kind, number in zip((KEY, DOOR, 8, 9), expected, strict=True):
        assert (count[kind] == number).all()
    assert (state.cells[np.arange(300), state.agent[:, 0], state.agent[:, 1]] == EMPTY).all()
    if task in ("simple", "colored", "lava"):
        widths = (state.cells[:, 0] != EMPTY).sum(axis=1)
        assert set(widths.tolist()) == set(range(5, 11))
    if task == "colored":
        colours = [sorted((cells[cells & 15 == KEY] >> 4 & 7).tolist()) for cells in state.cells]
        doors = np.array([(cells[cells & 15 == DOOR] >> 4 & 7)[0] for cells in state.cells])
        assert all(pair == [RED, BLUE] for pair in colours)
        assert 0.4 < (doors == RED).mean() < 0.6


def test_lava_ends_the_episode_without_a_reward():
    world = make(task="lava")
    world.state.agent[0] = 2, 2, 0
    world.state.cells[0, 2, 3] = LAVA
    assert step(world, FORWARD) == (0, True, False)


# The map --------------------------------------------------------------------------------------------


def test_the_map_keeps_what_was_seen_and_forgets_it_with_the_episode():
    world = make(64, task="two_door")
    random, before = np.random.default_rng(0), world.state.seen.copy()
    assert before.sum(axis=(1, 2)).max() <= 9
    for _ in range(149):
        world.step({"agent": random.integers(0, 3, (64, 1))})
        assert (world.state.seen >= before).all()
        before = world.state.seen.copy()
    world.step({"agent": np.full((64, 1), DONE)})
    assert world.state.seen.sum(axis=(1, 2)).max() <= 9


def test_what_the_agent_has_not_seen_does_not_change_its_observation():
    world = make(task="simple", size=10, min_size=10)
    for observe in ("view", "map", "both"):
        world = make(task="simple", min_size=10, observe=observe)
        world.state.agent[0] = 5, 5, 0
        world.state.cells[0, 1:9, 1:9] = EMPTY
        first = world.load(world.save()).agent_types["agent"].observation.copy()
        world.state.cells[0, 2, 2], world.state.cells[0, 5, 1] = KEY + 16, WALL
        assert np.array_equal(world.load(world.save()).agent_types["agent"].observation, first)
        world.state.cells[0, 5, 6] = KEY + 16
        assert not np.array_equal(world.load(world.save()).agent_types["agent"].observation, first)


@pytest.mark.parametrize("observe", ["view", "map"])
def test_observations_turn_with_the_agent(observe):
    """A scene turned by a quarter looks the same, but for the compass."""
    world = make(task="doorkey", size=7, observe=observe)
    rows = []
    cells = world.state.cells[0].copy()
    row, column, direction = world.state.agent[0]
    for turn in range(4):
        world.state.cells[0], world.state.seen[0] = np.rot90(cells, -turn), False
        world.state.agent[0] = row, column, (direction + turn) % 4
        seen = world.load(world.save()).agent_types["agent"].observation[0, 0].copy()
        if observe == "view":
            seen[world.layout.compass : world.layout.compass + 4] = 0
        rows.append(seen)
        row, column = column, 6 - row
    assert all(np.array_equal(other, rows[0]) for other in rows[1:])


# The world ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_a_world(task):
    for observe in ("view", "both"):  # the map alone: test_contracts.py
        settings = DoorKeySettings(task=task, observe=observe, max_episode_steps=40)
        check_world(lambda num_envs, settings=settings: DoorKey(settings, num_envs), steps=60)


def test_exports_pass_the_conformance_tests_of_their_libraries():
    parallel_api_test(parallel_env(task="colored"), num_cycles=60)
    check_env(single_env(task="doorkey", size=5), skip_render_check=True)
    with pytest.raises(TypeError, match="taks: no such setting; did you mean 'task'"):
        parallel_env(taks="lava")


def test_pictures_and_text_show_the_fog():
    world = make(task="lava", min_size=10)
    picture = world.frame(0)
    assert picture.shape == (11 * 32, 10 * 32, 3)
    assert picture.dtype == np.uint8
    world.state.seen[0] = True
    assert (world.frame(0) != picture).any()
    text = world.ansi(0)
    assert text.startswith("step 0, holds nothing")
    assert "~" in text
    assert "?" not in text
    assert "?" in make(task="lava", min_size=10).ansi(0)
    while not step(world, DONE)[2]:
        pass
    assert world.ansi(0, final=True).startswith("step 150")
