"""The grid world's expert, and its optimum against a search over all joint states."""

from collections import deque
from itertools import product

import numpy as np
import pytest

from coterie.worlds.gridworld.world import MAX_TARGETS, Gridworld, GridworldSettings, best_return
from helpers.grid import DOWN, MODES, RIGHT, STAY, UP, make, start, step


def guided_episodes(world, episodes, seed=0):
    """Mean return per agent and length of each copy's first episode under the expert."""
    world.reset(seed)
    total, length, open_ = np.zeros(world.num_envs), np.zeros(world.num_envs, int), np.ones(world.num_envs, bool)
    random = np.random.default_rng(0)
    while open_.any():
        timestep = world.step({"agent": world.expert("agent", random)})
        total += open_ * timestep.agent_types["agent"].reward.mean(axis=1, dtype=np.float64)
        length += open_
        open_ &= ~timestep.ended
    return total[:episodes], length[:episodes]


def joint_optimum(world):
    """Fewest steps to collect everything, by searching all joint states of copy 0."""
    size, walls = world.settings.grid_size, world.grid.walls[0]
    targets = [tuple(map(int, cell)) for cell in world.grid.targets[0]]
    first = tuple(tuple(map(int, cell)) for cell in world.grid.agents[0])
    queue, known = deque([(first, frozenset(targets), 0)]), {(first, frozenset(targets))}
    while queue:
        agents, left, time = queue.popleft()
        if not left:
            return time
        options = []
        for row, column in agents:
            near = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1), (row, column))
            options.append([(r, c) for r, c in near if 0 <= r < size and 0 <= c < size and not walls[r, c]])
        for moved in product(*options):
            state = (moved, left - set(moved))
            if state not in known:
                known.add(state)
                queue.append((*state, time + 1))
    raise AssertionError("unreachable target")


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"num_targets": 2}, {"num_targets": 3, "num_obstacles": 2}])
def test_best_return_equals_search_over_joint_states(fields):
    config = GridworldSettings(grid_size=3, **fields)
    world = Gridworld(config, 1)
    for seed in range(12):
        world.reset(seed)
        length = joint_optimum(world)
        best = best_return(config, episodes=1, seed=seed)
        assert best["length"] == length
        assert best["mean_return"] == pytest.approx(10 * config.targets + 20 - 0.1 * length)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extra", [{}, {"num_obstacles": 6, "messages": 2}, {"max_steps": 4, "step_reward": -0.5}])
def test_expert_never_beats_the_best(mode, extra):
    config = GridworldSettings(grid_size=5, mode=mode, num_agents=3, **extra)
    world = Gridworld(config, 40)
    total, length = guided_episodes(world, 40, seed=7)
    best = best_return(config, episodes=40, seed=7)
    assert length.mean() >= best["length"] - 1e-9
    assert total.mean() <= best["bound"] + 1e-5
    assert best["mean_return"] <= best["bound"]
    if mode in ("meet", "race"):  # shortest paths are the whole art
        assert length.mean() == best["length"]
        assert total.mean() == pytest.approx(best["mean_return"], rel=1e-5)


def test_best_return_by_hand_when_time_is_short():
    assert best_return(GridworldSettings(grid_size=30, num_agents=1, max_steps=1), 50)["success"] == 0.0
    config = GridworldSettings(grid_size=2, num_agents=1, num_targets=3, max_steps=2)
    best = best_return(config, episodes=20)  # two of the three targets are within two steps
    assert best == {
        "mean_return": pytest.approx(19.8),
        "bound": pytest.approx(19.8),
        "length": 2.0,
        "success": 0.0,
    }


def test_race_bound_counts_arriving_together():
    config = GridworldSettings(grid_size=5, mode="race")
    best = best_return(config, episodes=200)
    assert best["bound"] == 10.0  # whoever is nearer may wait
    assert 2.5 <= best["mean_return"] < 10.0


def test_competitive_return_without_ties():
    best = best_return(GridworldSettings(mode="competitive", num_agents=3), episodes=20)
    assert best["mean_return"] == pytest.approx(3 * (20 - 2 * 5) / 3)
    assert best["bound"] == pytest.approx(3 * 20 / 3)


@pytest.mark.parametrize(
    "fields", [{"target_move_probability": 0.1}, {"num_targets": MAX_TARGETS + 1}, {"step_reward": 0.1}]
)
def test_best_return_refuses_what_it_cannot_solve(fields):
    with pytest.raises(ValueError, match="best_return"):
        best_return(GridworldSettings(**fields))


def moves_of(world):
    return world.expert("agent", np.random.default_rng(0))[0].tolist()


def test_cooperative_expert_shares_the_targets():
    world = start([(0, 0), (0, 1)], [(0, 3), (4, 0)], grid_size=5, num_targets=2)
    assert moves_of(world) == [DOWN, RIGHT]  # both are nearest to (0, 3); agent 1 is nearer
    world = start([(0, 0), (0, 2)], [(0, 3)], grid_size=5, num_targets=1)
    assert moves_of(world) == [RIGHT, RIGHT]  # with none to spare the other follows


def test_competitive_expert_avoids_lost_races():
    world = start([(0, 0), (0, 2)], [(0, 3), (4, 0)], grid_size=5, num_targets=2, mode="competitive")
    assert moves_of(world) == [DOWN, RIGHT]
    world = start([(0, 0), (0, 2)], [(0, 3)], grid_size=5, num_targets=1, mode="competitive")
    assert moves_of(world) == [RIGHT, RIGHT]


def test_meeting_expert_waits_on_the_target():
    world = start([(0, 0), (2, 2)], [(2, 2)], grid_size=5, mode="meet")
    assert moves_of(world) == [DOWN, STAY]


def test_expert_walks_around_walls():
    world = start([(0, 0)], [(0, 2)], walls=[(0, 1), (1, 1)], grid_size=4, num_targets=1, num_obstacles=2)
    path = []
    for _ in range(6):
        path.append(moves_of(world)[0])
        timestep = step(world, path[-1])
    assert path == [DOWN, DOWN, RIGHT, RIGHT, UP, UP]
    assert timestep.success.all()


def test_expert_sends_symbol_zero():
    world = make(3, messages=2)
    world.reset(0)
    action = world.expert("agent", np.random.default_rng(0))
    assert action.shape == (3, 2, 2)
    assert not action[..., 1].any()
