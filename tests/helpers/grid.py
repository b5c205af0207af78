"""Grid worlds set up by hand, for the tests of `coterie.worlds.gridworld*`."""

import numpy as np

from coterie.core.trees import map_tree
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings

UP, DOWN, LEFT, RIGHT, STAY = range(5)
MODES = ("cooperative", "competitive", "meet", "race")
OBSERVATIONS = ("flat", "dict", "image")


def make(num_envs=1, **fields):
    return Gridworld(GridworldSettings(**fields), num_envs)


def arrange(world, agents=None, targets=None, walls=None):
    """Put things on given cells of copy 0, and say what is seen there."""
    state = world.save()
    for name, cells in (("agents", agents), ("targets", targets)):
        if cells is not None:
            state[name][0] = cells
    if walls is not None:
        state["walls"][0] = False
        for cell in walls:
            state["walls"][0][cell] = True
    return world.load(state).agent_types["agent"]


def start(agents, targets, walls=None, **fields):
    """A world of one copy, reset and arranged."""
    world = make(num_agents=len(agents), **fields)
    world.reset(0)
    arrange(world, agents, targets, walls)
    return world


def step(world, *actions):
    return world.step({"agent": np.array([actions])})


def rewards(timestep):
    return timestep.agent_types["agent"].reward[0].tolist()


def seen(world, a=0):
    """A copy of what agent a of copy 0 sees now."""
    return map_tree(lambda x: x[0, a].copy(), world.load(world.save()).agent_types["agent"].observation)


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)
    return np.array_equal(left, right)


def play(world, steps, seed=0):
    """Random play; a digest of every tick."""
    random, log = np.random.default_rng(seed), []
    shape = (world.num_envs, world.settings.num_agents)
    for _ in range(steps):
        action = random.integers(0, 5, shape)
        if world.settings.messages:
            action = np.stack([action, random.integers(0, world.settings.messages, shape)], axis=-1)
        timestep = world.step({"agent": action})
        agent_step = timestep.agent_types["agent"]
        arrays = [agent_step.reward, agent_step.terminated, agent_step.truncated, timestep.ended, timestep.success]
        arrays += (
            [*agent_step.observation.values()] if isinstance(agent_step.observation, dict) else [agent_step.observation]
        )
        log.append([array.copy() for array in arrays])
    return log


def equal_logs(left, right, num_envs=slice(None)):
    return all(
        np.array_equal(a[num_envs], b[num_envs])
        for x, y in zip(left, right, strict=True)
        for a, b in zip(x, y, strict=True)
    )
