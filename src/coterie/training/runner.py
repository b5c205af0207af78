"""Plays one shard of a world and writes one Experience per group.

The runner owns what lies between a world and its players: who sees what, memory between decisions,
decisions still open when a rollout ends, and the running tally of episodes. It never learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.core import seeding
from coterie.core.group import Annotator, Guard, Place, Seat
from coterie.core.types import (
    Array,
    Decision,
    Experience,
    State,
    StateRows,
    Ticks,
    View,
    action_dtype,
    action_shape,
    map_tree,
)
from coterie.core.world import World
from coterie.training.rollout import Opening, StateWriter, Writer, cut_short, open_decisions, picker


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended, in the order they did."""

    at: Array  # [E] int: tick of the rollout at which each ended
    copy: Array  # [E] int
    length: Array  # [E] int: ticks
    returns: Mapping[str, Array]  # group -> [E, A] float64, raw
    success: Array | None  # [E] bool


def join_episodes(parts: Sequence[Episodes]) -> Episodes:
    """Episodes of several shards in one order that does not depend on who played them."""
    order = np.argsort(np.concatenate([p.at for p in parts]), kind="stable")

    def join(arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)[order]

    success = [p.success for p in parts if p.success is not None]
    return Episodes(
        join([p.at for p in parts]),
        join([p.copy for p in parts]),
        join([p.length for p in parts]),
        {group: join([p.returns[group] for p in parts]) for group in parts[0].returns},
        join(success) if success else None,
    )


@dataclass(frozen=True)
class Rollout:
    """What one shard lived through in one iteration."""

    experiences: Mapping[str, Experience]
    episodes: Episodes
    state: StateRows | None = None


class Tally:
    """Running return and length of every copy's present episode."""

    def __init__(self, copies: int, places: Sequence[Place]) -> None:
        self.places = places
        self.length = np.zeros(copies, np.int64)
        self.running = {p.group: np.zeros((copies, len(p.agents))) for p in places}
        self._clear()

    def _clear(self) -> None:
        self.tick = 0
        self.done: list[tuple[Array, ...]] = []
        self.returns: dict[str, list[Array]] = {p.group: [] for p in self.places}

    def add(self, ticks: Ticks) -> None:
        """Take in what one step brought."""
        self.length += 1
        for place in self.places:
            reward = ticks.kinds[place.kind].reward
            self.running[place.group] += reward if place.whole else reward[:, place.columns]
        if ticks.ended.any():
            over = np.flatnonzero(ticks.ended)
            success = np.zeros(len(over), bool) if ticks.success is None else ticks.success[over]
            self.done.append((np.full(len(over), self.tick), over, self.length[over], success))
            self.has_success = ticks.success is not None
            self.length[over] = 0
            for group, running in self.running.items():
                self.returns[group].append(running[over])
                running[over] = 0
        self.tick += 1

    def drain(self) -> Episodes:
        """Hand over the episodes that ended since the last call."""
        if self.done:
            at, copy, length, success = (np.concatenate(column) for column in zip(*self.done, strict=True))
            returns = {group: np.concatenate(rows) for group, rows in self.returns.items()}
            episodes = Episodes(at, copy, length, returns, success if self.has_success else None)
        else:
            none = np.zeros(0, np.int64)
            returns = {p.group: np.zeros((0, len(p.agents))) for p in self.places}
            episodes = Episodes(none, none, none, returns, None)
        self._clear()
        return episodes

    def state(self) -> State:
        return {"length": self.length.copy(), "running": {group: a.copy() for group, a in self.running.items()}}

    def load(self, state: State) -> None:
        self.length = state["length"].copy()
        self.running = {group: array.copy() for group, array in state["running"].items()}


class Runner:
    """One shard: a world, the groups' seats around it, and everything between two of its iterations."""

    def __init__(
        self, world: World, seats: Sequence[Seat], seed: int, shard: int = 0, greedy: bool = False, shards: int = 1
    ) -> None:
        self.progress: float | None = None  # share of a run's iterations that are over; None: this is no training
        self.tick, self.frames_per_tick = 0, world.copies * shards
        self.world, self.seats, self.seed, self.shard, self.greedy = world, seats, seed, shard, greedy
        self.ticks = world.reset(seeding.integer(seed, "world", shard))
        self.tally = Tally(world.copies, [seat.place for seat in seats])
        self.openings: dict[str, Opening] = {}
        self.memories = {
            s.place.group: np.zeros((world.copies, len(s.place.agents), s.policy.memory_size), np.float32)
            for s in seats
            if s.policy.memory_size
        }

    def play(self, steps: int, iteration: int, progress: float | None = None) -> Rollout:
        """Play `steps` ticks of every copy."""
        self.begin(iteration)
        self.progress, self.tick = progress, (iteration - 1) * steps
        offset = 0 if self.world.simultaneous else 1
        writers = {}
        for seat in self.seats:
            name = seat.place.group
            tick = self.ticks.kinds[seat.place.kind]
            writers[name] = Writer(seat, self.world.copies, steps + offset, tick)
            if name in self.openings:
                writers[name].open(self.openings[name])
        states = None if self.ticks.state is None else StateWriter(steps + offset, self.ticks.state)
        for t in range(offset, steps + offset):
            if states is not None and self.ticks.state is not None:
                states.seen(t, self.ticks.state)
            self.step(writers, t, states)
        experiences = {}
        for seat in self.seats:
            name = seat.place.group
            experiences[name] = writers[name].finish(self.ticks.kinds[seat.place.kind], self.memories.get(name))
        if not self.world.simultaneous:
            self.openings = {name: open_decisions(e) for name, e in experiences.items()}
        state = None if states is None or self.ticks.state is None else states.finish(self.ticks.state)
        return Rollout(experiences, self.tally.drain(), state)

    def begin(self, iteration: int) -> None:
        """Draw fresh random streams for an iteration."""
        self.random = {
            s.place.group: seeding.generator(self.seed, "act", iteration, self.shard, s.place.group) for s in self.seats
        }

    def step(self, writers: Mapping[str, Writer] | None = None, t: int = 0, states: StateWriter | None = None) -> None:
        """Let everybody decide once, step the world, and write both down if asked to."""
        actions: dict[str, Array] = {}
        for seat in self.seats:
            place = seat.place
            view = self.view(seat)
            decision = seat.policy.act(view)
            if seat.guard is not None:
                seat.guard.witness(view, decision.action)
            self.remember(place.group, view, decision)
            if writers is not None:
                writers[place.group].decided(t, view, decision)
            if place.whole:
                actions[place.kind] = decision.action
            else:
                if place.kind not in actions:
                    space = place.spaces.action
                    shape = (self.world.copies, len(place.spaces.agents), *action_shape(space))
                    actions[place.kind] = np.zeros(shape, action_dtype(space))
                actions[place.kind][:, place.columns] = decision.action
        self.ticks = self.world.step(actions)
        self.tally.add(self.ticks)
        self.tick += 1
        if writers is not None:
            cut = cut_short(self.ticks)
            for seat in self.seats:
                name = seat.place.group
                writers[name].arrived(t, self.ticks.kinds[seat.place.kind], cut, self.memories.get(name))
            if states is not None:
                states.arrived(self.ticks, cut)
        for memory in self.memories.values():
            memory[self.ticks.ended] = 0

    def view(self, seat: Seat) -> View:
        """What a group sees now."""
        place, tick = seat.place, self.ticks.kinds[seat.place.kind]
        pick = picker(place)
        view = View(
            observation=map_tree(pick, tick.observation),
            acting=pick(tick.acting),
            agents=np.arange(len(place.agents)) if seat.members is None else seat.members,
            random=self.random[place.group],
            greedy=self.greedy,
            mask=None if tick.mask is None else pick(tick.mask),
            memory=self.memories.get(place.group),
            world=self.world,
            kind=place.kind,
            columns=place.columns,
            progress=self.progress,
            tick=self.tick,
            frames=self.tick * self.frames_per_tick,
        )
        if seat.guard is not None:
            view = replace(view, mask=seat.guard.allowed(view))
        if seat.annotator is not None:
            asked = self.progress is not None or seat.annotator.always
            view = replace(view, notes=seat.annotator.note(view, seat.policy) if asked else None)
        return view

    def remember(self, group: str, view: View, decision: Decision) -> None:
        """Keep what a policy wants to remember, for those who really acted."""
        if decision.memory is not None:
            old = self.memories[group]
            self.memories[group] = np.where(view.acting[..., None], decision.memory, old)

    def save(self) -> State:
        """All that the next iteration depends on."""
        return {
            "world": self.world.save(),
            "tally": self.tally.state(),
            "memories": {name: memory.copy() for name, memory in self.memories.items()},
            "openings": {name: _opening_state(opening) for name, opening in self.openings.items()},
            "beside": {seat.place.group: [part.state() for part in beside(seat)] for seat in self.seats},
        }

    def load(self, state: State) -> None:
        """Return to a saved moment."""
        self.ticks = self.world.load(state["world"])
        self.tally.load(state["tally"])
        self.memories = {name: memory.copy() for name, memory in state["memories"].items()}
        self.openings = {name: Opening(**held) for name, held in state["openings"].items()}
        for seat in self.seats:
            for part, held in zip(beside(seat), state.get("beside", {}).get(seat.place.group, [])):
                part.load(held)


def beside(seat: Seat) -> list[Annotator | Guard]:
    """Who sits beside a policy and has a state of its own."""
    return [part for part in (seat.annotator, seat.guard) if part is not None]


def _opening_state(opening: Opening) -> State:
    return {name: getattr(opening, name) for name in Opening.__dataclass_fields__}
