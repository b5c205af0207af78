"""Counts of a run that go on when it is resumed, with whatever number of processes.

Parts of actors that restore what they counted (`Stateful.restored`) do so in every process. Resumed with another
number of processes, more or fewer of them restore the same counts, and the difference must not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.core.group import Actor
from coterie.core.types import Counter, Counters, Distinct, Mean, State, counted_since

ByGroup = dict[str, dict[str, Counter]]


class Totals:
    """Counts since the run began, of the parts that restore them, by group."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.restored = {a.group_spec.group: tuple(p for part in a.parts() for p in part.restored) for a in actors}
        self.latest: dict[str, dict[str, list[float]]] = {}  # as of the latest record
        self.surplus: dict[str, Counters] = {}  # group -> what restored parts count beyond what was saved

    def corrected(self, found: ByGroup) -> ByGroup:
        """The counters of all processes without the surplus."""
        for name, surplus in self.surplus.items():
            found[name] |= counted_since(surplus, {key: found[name][key] for key in surplus if key in found[name]})
        return found

    def record(self, found: Mapping[str, Counters]) -> None:
        """Remember the counts for the next checkpoint."""
        self.latest = {name: self._plain(name, counters) for name, counters in found.items()}

    def _plain(self, group: str, counters: Counters) -> dict[str, list[float]]:
        """Totals and weights of means, totals alone of counts."""
        return {
            key: list(value) if isinstance(value, Mean) else [float(value)]
            for key, value in counters.items()
            if key.startswith(self.restored[group]) and not isinstance(value, Distinct)
        }  # Distinct: texts that several processes have met are counted once

    def state(self) -> State:
        return {"advice": self.latest}  # the name of 0.3

    def load(self, state: State, found: Mapping[str, Counters]) -> None:
        """Return to a saved state; `found` is what all processes count now that they have restored theirs."""
        now = {name: self._plain(name, counters) for name, counters in found.items()}
        self.latest = state.get("advice", {})  # not in checkpoints of 0.2
        self.surplus = {
            name: counted_since(_counters(saved), _counters(now[name])) for name, saved in self.latest.items()
        }


def _counters(saved: Mapping[str, Sequence[float]]) -> dict[str, Counter]:
    return {key: Mean(*value) if len(value) > 1 else value[0] for key, value in saved.items()}
