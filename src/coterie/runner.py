"""Plays one shard of a world and writes one Experience per group.

The runner owns what lies between a world and its players: who sees what, memory between decisions,
decisions still open when a rollout ends, and the running tally of episodes. It never learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie import streams
from coterie.group import Place, Seat
from coterie.types import (
    Array,
    Decision,
    Experience,
    Finals,
    State,
    Tick,
    Ticks,
    Tree,
    View,
    action_dtype,
    action_shape,
    map_tree,
)
from coterie.world import World


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


@dataclass(frozen=True)
class Opening:
    """Decisions that were still open when the last rollout ended: row 0 of the next."""

    active: Array  # [N, A] bool
    observation: Tree  # [N, A, …]
    action: Array  # [N, A, …]
    log_prob: Array  # [N, A]
    reward: Array  # [N, A]: what has arrived so far
    mask: Array | None
    memory: Array | None


class Writer:
    """The growing Experience of one group during one rollout."""

    def __init__(self, seat: Seat, copies: int, rows: int, first: Tick) -> None:
        place = seat.place
        shape = (rows, copies, len(place.agents))
        self.place = place
        self.observation = map_tree(
            lambda a: np.zeros((rows + 1, copies, len(place.agents), *a.shape[2:]), a.dtype),
            first.observation,
        )
        space = place.spaces.action
        self.action = np.zeros((*shape, *action_shape(space)), action_dtype(space))
        self.log_prob = np.zeros(shape, np.float32)
        self.reward = np.zeros(shape, np.float32)
        self.active = np.zeros(shape, bool)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape, bool)
        self.mask = None if first.mask is None else np.ones((*shape, first.mask.shape[-1]), bool)
        self.memory = np.zeros((*shape, seat.policy.memory_size), np.float32) if seat.policy.memory_size else None
        self.finals: list[tuple[Array, Tree]] = []

    def open(self, opening: Opening) -> None:
        """Begin with decisions left open by the last rollout."""
        map_tree(lambda into, a: into.__setitem__(0, a), self.observation, opening.observation)
        self.active[0], self.action[0] = opening.active, opening.action
        self.log_prob[0], self.reward[0] = opening.log_prob, opening.reward
        if self.mask is not None:
            self.mask[0] = opening.mask
        if self.memory is not None:
            self.memory[0] = opening.memory

    def decided(self, t: int, view: View, decision: Decision) -> None:
        """Write down what was seen and decided at row t."""
        map_tree(lambda into, a: into.__setitem__(t, a), self.observation, view.observation)
        self.active[t] = view.acting
        self.action[t] = decision.action
        if decision.log_prob is not None:
            self.log_prob[t] = decision.log_prob
        if self.mask is not None:
            self.mask[t] = view.mask
        if self.memory is not None:
            self.memory[t] = view.memory

    def arrived(self, t: int, tick: Tick, ended: Array) -> None:
        """Write down what followed from row t."""
        pick = _picker(self.place)
        self.reward[t] = pick(tick.reward)
        self.terminated[t] = pick(tick.terminated)
        self.truncated[t] = pick(tick.truncated)
        if ended.any():
            over = np.flatnonzero(ended & self.truncated[t].any(axis=1))
            if len(over):
                index = np.stack([np.full(len(over), t), over], axis=1)
                self.finals.append((index, map_tree(lambda a: pick(a)[over], tick.final_observation)))

    def finish(self, tick: Tick) -> Experience:
        """Close the rollout at the present tick."""
        pick = _picker(self.place)
        map_tree(lambda into, a: into.__setitem__(-1, pick(a)), self.observation, tick.observation)
        if self.finals:
            index = np.concatenate([i for i, _ in self.finals])
            final = map_tree(lambda *a: np.concatenate(a), *(o for _, o in self.finals))
        else:
            index, final = np.zeros((0, 2), np.int64), map_tree(lambda a: a[0, :0], self.observation)
        return Experience(
            self.observation,
            self.action,
            self.log_prob,
            self.reward,
            self.active,
            self.terminated,
            self.truncated,
            pick(tick.acting).copy(),
            Finals(index, final),
            self.mask,
            self.memory,
        )


def _picker(place: Place) -> Any:
    """A function that takes a group's columns out of a kind's array `[N, A, …]`."""
    return (lambda a: a) if place.whole else (lambda a: a[:, place.columns])


def open_decisions(experience: Experience) -> Opening:
    """The decisions that a finished rollout leaves open, with what has arrived for them."""
    open_rows = experience.active & ~experience.closed()
    rows, copies, agents = open_rows.shape
    active = open_rows.any(axis=0)
    at = open_rows.argmax(axis=0)  # an agent has at most one open decision
    n, a = np.meshgrid(np.arange(copies), np.arange(agents), indexing="ij")
    since = np.arange(rows)[:, None, None] >= at
    gained = np.where(active, (experience.reward * since).sum(axis=0, dtype=np.float32), np.float32(0))
    return Opening(
        active,
        map_tree(lambda o: o[at, n, a], experience.observation),
        experience.action[at, n, a],
        experience.log_prob[at, n, a],
        gained,
        None if experience.mask is None else experience.mask[at, n, a],
        None if experience.memory is None else experience.memory[at, n, a],
    )


class Runner:
    """One shard: a world, the groups' seats around it, and everything between two of its iterations."""

    def __init__(self, world: World, seats: Sequence[Seat], seed: int, shard: int = 0, greedy: bool = False) -> None:
        self.world, self.seats, self.seed, self.shard, self.greedy = world, seats, seed, shard, greedy
        self.ticks = world.reset(streams.integer(seed, "world", shard))
        self.tally = Tally(world.copies, [seat.place for seat in seats])
        self.openings: dict[str, Opening] = {}
        self.memories = {
            s.place.group: np.zeros((world.copies, len(s.place.agents), s.policy.memory_size), np.float32)
            for s in seats
            if s.policy.memory_size
        }

    def play(self, steps: int, iteration: int) -> Rollout:
        """Play `steps` ticks of every copy."""
        self.begin(iteration)
        offset = 0 if self.world.simultaneous else 1
        writers = {}
        for seat in self.seats:
            name = seat.place.group
            tick = self.ticks.kinds[seat.place.kind]
            writers[name] = Writer(seat, self.world.copies, steps + offset, tick)
            if name in self.openings:
                writers[name].open(self.openings[name])
        for t in range(offset, steps + offset):
            self.step(writers, t)
        experiences = {
            seat.place.group: writers[seat.place.group].finish(self.ticks.kinds[seat.place.kind]) for seat in self.seats
        }
        if not self.world.simultaneous:
            self.openings = {name: open_decisions(e) for name, e in experiences.items()}
        return Rollout(experiences, self.tally.drain())

    def begin(self, iteration: int) -> None:
        """Draw fresh random streams for an iteration."""
        self.random = {
            s.place.group: streams.generator(self.seed, "act", iteration, self.shard, s.place.group) for s in self.seats
        }

    def step(self, writers: Mapping[str, Writer] | None = None, t: int = 0) -> None:
        """Let everybody decide once, step the world, and write both down if asked to."""
        actions: dict[str, Array] = {}
        for seat in self.seats:
            place = seat.place
            view = self.view(seat)
            decision = seat.policy.act(view)
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
        if writers is not None:
            for seat in self.seats:
                writers[seat.place.group].arrived(t, self.ticks.kinds[seat.place.kind], self.ticks.ended)
        for memory in self.memories.values():
            memory[self.ticks.ended] = 0

    def view(self, seat: Seat) -> View:
        """What a group sees now."""
        place, tick = seat.place, self.ticks.kinds[seat.place.kind]
        pick = _picker(place)
        return View(
            observation=map_tree(pick, tick.observation),
            acting=pick(tick.acting),
            agents=np.arange(len(place.agents)),
            random=self.random[place.group],
            greedy=self.greedy,
            mask=None if tick.mask is None else pick(tick.mask),
            memory=self.memories.get(place.group),
            world=self.world,
            kind=place.kind,
            columns=place.columns,
        )

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
        }

    def load(self, state: State) -> None:
        """Return to a saved moment."""
        self.ticks = self.world.load(state["world"])
        self.tally.load(state["tally"])
        self.memories = {name: memory.copy() for name, memory in state["memories"].items()}
        self.openings = {name: Opening(**held) for name, held in state["openings"].items()}


def _opening_state(opening: Opening) -> State:
    return {name: getattr(opening, name) for name in Opening.__dataclass_fields__}
