"""Text codec of the particle worlds: the direction to the nearest goal, or away from the nearest adversary."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Discrete, Tree
from coterie.worlds.mpe.world import Spread, Tag

MIN_OFFSET = 0.1  # smaller offsets along an axis are left out


class MpeText:
    """Describes observations of simple_spread and simple_tag; the choices are the discrete actions."""

    prompt = "particles"
    choices = ("rest", "left", "right", "down", "up")
    idle = 0

    def __init__(self, world: Spread | Tag, agent_type: str) -> None:
        if not isinstance(world.agent_types[agent_type].action, Discrete):
            raise ValueError("continuous actions cannot be described in words; set world.continuous_actions=false")
        agents = len(world._rules.strength)
        landmarks = len(world._rules.size) - agents
        adversaries = world._rules.adversaries
        others = 4 + 2 * landmarks  # first column of the other agents
        self.sign = 1.0
        if isinstance(world, Spread):
            self.phrase, self.columns = "The nearest landmark is", slice(4, others)
        elif agent_type == "adversary":  # the other adversaries come first in a row
            self.phrase = "The prey is"
            self.columns = slice(others + 2 * (adversaries - 1), others + 2 * (agents - 1))
        else:
            self.phrase, self.columns = "Away from the nearest hunter is", slice(others, others + 2 * adversaries)
            self.sign = -1.0

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        return [self.describe_offsets(row[self.columns].reshape(-1, 2)) for row in observation]

    def describe_offsets(self, offsets: Array) -> str:
        """The nearest of some offsets `[K, 2]` in tenths of a unit, the longer axis first."""
        across, up = self.sign * offsets[np.hypot(offsets[:, 0], offsets[:, 1]).argmin()]
        axes = [(abs(across), "right" if across > 0 else "left"), (abs(up), "up" if up > 0 else "down")]
        axes = sorted((axis for axis in axes if axis[0] >= MIN_OFFSET), key=lambda axis: -axis[0])
        where = " and ".join(f"{round(10 * float(far))} steps {word}" for far, word in axes)
        return f"{self.phrase} {where or 'here'}."

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """Descriptions with offsets in all directions, and two with offset 0."""
        offsets = [(a * x, a * y) for a in (0.3, 0.8) for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        return [self.describe_offsets(np.array([offset])) for offset in (*offsets, *[(0.0, 0.0)] * 2)]
