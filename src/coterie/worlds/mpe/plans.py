"""Plan codec of simple_spread: a skill moves to one landmark; texts order landmarks by the team's total distance."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Tree
from coterie.worlds.assignments import AssignmentText, number_by_totals
from coterie.worlds.mpe.world import Spread


class SpreadPlans(AssignmentText):
    """Text states of observations."""

    def __init__(self, world: Spread, agent_type: str) -> None:
        self.agents = world.settings.num_agents
        super().__init__(self.agents)

    def states(self, observation: Tree) -> Array:
        assert isinstance(observation, np.ndarray)
        rows, count = len(observation), self.agents
        goals = observation[:, 4 : 4 + 2 * count].reshape(rows, count, 2)
        others = observation[:, 4 + 2 * count : 2 + 4 * count].reshape(rows, count - 1, 2)
        away = np.linalg.norm(goals[:, None] - others[:, :, None], axis=-1)  # [R, B, L]
        return number_by_totals(np.linalg.norm(goals, axis=-1), away)
