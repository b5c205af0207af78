"""The door-key tasks to planners: numbers of text states, and the right skill of each state."""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Tree
from coterie.nn.launch import kernel
from coterie.worlds.doorkey.layouts import COLORED, RoomState
from coterie.worlds.doorkey.skills import FACT_SIZES, Facts, planned_skill, read_facts
from coterie.worlds.doorkey.text import Scene, SkillText, describe_facts
from coterie.worlds.doorkey.world import DoorKey

SIZES = tuple(FACT_SIZES)


class DoorKeyPlans:
    """The texts of `SkillText`; the number of a text state is that of the facts which the observation tells."""

    def __init__(self, world: DoorKey, agent_type: str) -> None:
        self.scene, self.text = Scene(world), SkillText(world, agent_type)
        self.prompt = self.text.prompt

    def states(self, observation: Tree) -> Array:
        assert not isinstance(observation, dict)
        facts = self.scene.facts(observation.reshape(len(observation), -1))
        return np.ravel_multi_index(tuple(facts), SIZES)

    def describe(self, number: int) -> str:
        index = np.unravel_index(number, SIZES)
        return describe_facts(self.scene.task, Facts(*map(int, index)))  # type: ignore[arg-type]  # numbers, not arrays

    def samples(self) -> list[str]:
        return self.text.samples()


@kernel
def write_best_skills(
    n: int, state: RoomState, task: int, table: Array, skills: Array, facts: Array, out: Array
) -> None:
    """Write the place of the planned skill among `skills` into `out` [N]; `facts` [N, 6] is scratch."""
    read_facts(state, n, task == COLORED, facts[n])
    planned = planned_skill(table, facts[n])
    out[n] = -1
    for i in range(len(skills)):
        if skills[i] == planned:
            out[n] = i
