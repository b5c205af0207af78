"""A cheap environment of 84×84×4 bytes for `benchmarks/pixels.py`: a bright square shows which action pays.

Registers `Screen84-v0`. A step copies one of 16 prepared pictures, so that the environment is not what is measured.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ACTIONS, LENGTH, SHAPE = 4, 100, (4, 84, 84)


class Screen84(gymnasium.Env):
    """The action that the square's quarter names pays 1; episodes last 100 steps."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self.render_mode = render_mode
        noise = np.random.default_rng(0)
        self.pictures = noise.integers(0, 64, (16, *SHAPE), np.uint8)
        for i, picture in enumerate(self.pictures):
            row, column = divmod(i % ACTIONS, 2)
            picture[:, 42 * row + 8 : 42 * row + 34, 42 * column + 8 : 42 * column + 34] = 255

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.shown = 0, int(self.np_random.integers(16))
        return self.pictures[self.shown], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.shown % ACTIONS)
        self.steps, self.shown = self.steps + 1, int(self.np_random.integers(16))
        return self.pictures[self.shown], reward, False, self.steps == LENGTH, {}


gymnasium.register("Screen84-v0", Screen84)
