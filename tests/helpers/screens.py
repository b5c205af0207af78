"""Environments that show pictures, each step another one, for Gymnasium and PettingZoo."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

LENGTH = 6


def picture(seed, step, action, shape=(30, 20, 3)):
    return np.random.default_rng([seed, step, action]).integers(0, 256, shape, np.uint8)


class Screen(gymnasium.Env):
    """Shows bytes that depend on the seed, the step and the last action."""

    def __init__(self, shape=(30, 20, 3)):
        self.observation_space, self.action_space = Box(0, 255, shape, np.uint8), Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.seed, self.at = seed, 0
        return picture(seed, 0, 0, self.observation_space.shape), {}

    def step(self, action):
        self.at += 1
        seen = picture(self.seed, self.at, int(action), self.observation_space.shape)
        return seen, 1.0, self.at == LENGTH, False, {}


gymnasium.register("Screen-v0", entry_point=Screen)


class Screens(ParallelEnv):
    """Two agents; the second one leaves halfway."""

    metadata: ClassVar = {"name": "screens"}
    possible_agents = ("left", "right")

    def __init__(self):
        self.render_mode = None

    def observation_space(self, agent):
        return Box(0, 255, (30, 20, 3), np.uint8)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.seed, self.at, self.agents = seed, 0, ["left", "right"]
        return {a: picture(seed, 0, i) for i, a in enumerate(self.agents)}, {a: {} for a in self.agents}

    def step(self, actions):
        self.at += 1
        over = {a: self.at == LENGTH or (a == "right" and self.at == LENGTH // 2) for a in self.agents}
        seen = {a: picture(self.seed, self.at, self.possible_agents.index(a)) for a in self.agents}
        found = (
            seen,
            dict.fromkeys(self.agents, 1.0),
            over,
            dict.fromkeys(self.agents, False),
            {a: {} for a in self.agents},
        )
        self.agents = [a for a in self.agents if not over[a]]
        return found


def parallel_env():
    return Screens()
