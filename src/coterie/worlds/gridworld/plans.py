"""Plan codec of the grid world: a skill is the shortest path to one target; texts list near and free targets."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Tree
from coterie.worlds.assignments import AssignmentText, goal_names, number_by_turns
from coterie.worlds.gridworld.world import Gridworld


class GridworldPlans(AssignmentText):
    """Text states of observations; distances count steps along both axes, obstacles left out."""

    def __init__(self, world: Gridworld, agent_type: str) -> None:
        settings = world.settings
        super().__init__(settings.targets)
        self.layout, self.targets, self.others = world._layout, settings.targets, settings.num_agents - 1
        self.limited = settings.view is not None

    def states(self, observation: Tree) -> Array:
        if isinstance(observation, dict):
            rows = np.concatenate([part.reshape(len(part), -1) for part in observation.values()], axis=1)
        else:
            rows = observation
        layout = self.layout
        me = rows[:, None, :2] if layout.absolute else np.zeros((1, 1, 2), np.float32)
        goals = _pairs(rows, layout.targets, self.targets) - me
        known = rows[:, layout.status[0] + layout.status[1] * np.arange(self.targets)] == 1.0
        others = _pairs(rows, layout.others, self.others) - me
        away = np.abs(goals[:, None] - others[:, :, None]).sum(axis=-1)  # [R, B, L]
        if self.limited:  # who is out of sight is nowhere near
            seen = rows[:, layout.visible[0] + layout.visible[1] * np.arange(self.others)] == 1.0
            away = np.where(seen[:, :, None], away, np.inf)
        return number_by_turns(_rounded(np.abs(goals).sum(axis=-1)), _rounded(away), known)


def _pairs(rows: Array, slots: tuple[int, int], count: int) -> Array:
    """The positions `[R, count, 2]` at a layout's slots."""
    first, stride = slots
    return rows[:, first + stride * np.arange(count)[:, None] + np.arange(2)]


def _rounded(distance: Array) -> Array:
    """Distances of which equal ones are equal bit for bit: they are sums of multiples of 1 / (size − 1)."""
    return np.round(distance, 4).astype(np.float32)


def skill_names(world: Gridworld) -> tuple[str, ...]:
    """The skills' names, those of the targets; raise where targets have no identity that every agent sees."""
    settings = world.settings
    if settings.mode == "race" or settings.observation == "image" or settings.instructions != "none":
        raise ValueError(
            "skills of the grid world need a mode other than race, flat or dict observations and no instructions; got "
            f"mode={settings.mode}, observation={settings.observation}, instructions={settings.instructions}"
        )
    return goal_names(settings.targets)
