"""A group of a finished run, or some of its agents, seated as they are: what others learn against.

A config's `policy: {run: …}` seats a group in a new table. This one keeps every agent who it was in its own run,
and plays greedily, or not, whatever the runner asks: whoever learns against it meets the play that is judged.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from coterie.group import Place
from coterie.types import Decision, State, View


@dataclass(frozen=True)
class FrozenSettings:
    path: str  # the run's directory
    checkpoint: str  # best, last or a step
    group: str  # whose policy
    greedy: bool = True  # take the likeliest actions; false: draw them


class Frozen:
    """The policy of a run's group at one checkpoint."""

    def __init__(self, settings: FrozenSettings, place: Place) -> None:
        from coterie import table  # a table is built of policies: imported here to avoid a circle

        groups = {group.name: group for group in table.load(settings.path, settings.checkpoint).groups}
        if settings.group not in groups:
            raise ValueError(f"'{settings.path}' has no group '{settings.group}'; there are {', '.join(groups)}")
        seat = groups[settings.group].seat
        strangers = [agent for agent in place.agents if agent not in seat.place.agents]
        if strangers:
            raise ValueError(f"'{strangers[0]}' is not in group '{settings.group}' of '{settings.path}'")
        members = np.arange(len(seat.place.agents)) if seat.members is None else seat.members
        self.members = members[[seat.place.agents.index(agent) for agent in place.agents]]  # [A] int
        self.policy, self.guard, self.greedy = seat.policy, seat.guard, settings.greedy
        self.annotator = seat.annotator if seat.annotator is not None and seat.annotator.always else None
        self.memory_size = seat.policy.memory_size

    def act(self, view: View) -> Decision:
        view = dataclasses.replace(view, agents=self.members, greedy=self.greedy)
        if self.guard is not None:
            view = dataclasses.replace(view, mask=self.guard.allowed(view))
        if self.annotator is not None:
            view = dataclasses.replace(view, notes=self.annotator.note(view, self.policy))
        return self.policy.act(view)

    def state(self) -> State:
        return self.policy.state()

    def load(self, state: State) -> None:
        self.policy.load(state)
