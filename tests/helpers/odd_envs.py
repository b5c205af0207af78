"""Environments with unusual spaces and homemade habits, for tests: `helpers.odd_envs:NAME-v0`.

Every Gymnasium environment here takes 5 steps an episode and pays what its action says.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class Five(gymnasium.Env):
    """Five steps; subclasses change spaces and values."""

    observation_space = spaces.Box(0, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed_steps = 0
        return self.observe(), self.info()

    def observe(self):
        return np.full(2, self.elapsed_steps, np.float32)

    def info(self):
        return {}

    def reward(self, action):
        return 1.0

    def step(self, action):
        assert self.action_space.contains(action), action
        self.elapsed_steps += 1
        return self.observe(), self.reward(action), self.elapsed_steps == 5, False, self.info()


class Numbers(Five):
    """Pays the mean of the action's numbers."""

    def __init__(self, low=0.0, high=1.0, dtype="float32", size=1, render_mode=None):
        bounds = (np.full(size, float(bound), dtype) for bound in (low, high))
        self.action_space = spaces.Box(*bounds, dtype=np.dtype(dtype).type)

    def reward(self, action):
        return float(action.mean())


for env_class in (Numbers,):
    gymnasium.register(f"{env_class.__name__}-v0", env_class, max_episode_steps=50)
