"""The particle worlds in words: where the nearest thing is that one goes to, or which way leads from it."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Discrete, Tree
from coterie.worlds.mpe.world import Spread, Tag

CLOSE = 0.1  # nearer than this along an axis is no way to go


class MpeText:
    """What agents of spread and tag are told, and what they may answer."""

    prompt = "particles"
    choices = ("rest", "left", "right", "down", "up")
    idle = 0

    def __init__(self, world: Spread | Tag, agent_type: str) -> None:
        if not isinstance(world.agent_types[agent_type].action, Discrete):
            raise ValueError("five forces at once have no words; set world.continuous_actions=false")
        agents = len(world._rules.strength)
        landmarks = len(world._rules.size) - agents
        hunters = world._rules.adversaries
        others = 4 + 2 * landmarks  # where in a row the others begin
        self.sign = 1.0
        if isinstance(world, Spread):
            self.what, self.where = "The nearest landmark is", slice(4, others)
        elif agent_type == "adversary":  # the other hunters come first in a row
            self.what = "The prey is"
            self.where = slice(others + 2 * (hunters - 1), others + 2 * (agents - 1))
        else:
            self.what, self.where = "Away from the nearest hunter is", slice(others, others + 2 * hunters)
            self.sign = -1.0

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        return [self.tell(row[self.where].reshape(-1, 2)) for row in observation]

    def tell(self, offsets: Array) -> str:
        """The nearest of some things, in tenths of a unit, the longer way first."""
        across, up = self.sign * offsets[np.hypot(offsets[:, 0], offsets[:, 1]).argmin()]
        ways = [(abs(across), "right" if across > 0 else "left"), (abs(up), "up" if up > 0 else "down")]
        ways = sorted((way for way in ways if way[0] >= CLOSE), key=lambda way: -way[0])
        where = " and ".join(f"{round(10 * float(far))} steps {word}" for far, word in ways)
        return f"{self.what} {where or 'here'}."

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """Things in all directions, and some that are here."""
        offsets = [(a * x, a * y) for a in (0.3, 0.8) for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        return [self.tell(np.array([offset])) for offset in (*offsets, *[(0.0, 0.0)] * 2)]
