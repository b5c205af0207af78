"""Plays one shard of a world and writes one Experience per group.

The runner connects a world with its actors: it builds their views, keeps policy memory between decisions, carries
pending transitions over to the next rollout and adds up episode returns. It never learns. `play_episodes` is the one
loop behind evaluation, matches, ratings, exploitability and videos.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.core import seeding
from coterie.core.group import Actor, GroupSpec, HasEpisodeState
from coterie.core.types import (
    Advice,
    Array,
    CoterieError,
    Counters,
    Decision,
    Experience,
    PendingTransitions,
    State,
    StateRows,
    TimeStep,
    View,
    action_dtype,
    action_shape,
    blank,
    counted_since,
    map_tree,
    open_decisions,
)
from coterie.core.world import World
from coterie.runs.interrupt import leave_if_asked
from coterie.training.rollout import RolloutBuffer, StateBuffer, cut_short, picker

EPISODE_LIMIT = 100_000  # steps after which an episode counts as endless
PATIENCE = 10_000  # the same where no time limit is known, for each agent that moves in turn
SLOW_EPISODE = 10.0  # seconds without an episode's end after which a missing time limit is mentioned
log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Episodes:
    """Finished episodes, in the order in which they ended."""

    at: Array  # [E] int: step of the rollout at which each ended
    copy: Array  # [E] int: index of its environment
    length: Array  # [E] int: steps
    returns: Mapping[str, Array]  # group -> [E, A] float64, raw
    success: Array | None  # [E] bool


def join_episodes(parts: Sequence[Episodes]) -> Episodes:
    """Episodes of several shards, in an order that does not depend on the number of workers."""
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
    """The experience of one shard in one iteration."""

    experiences: Mapping[str, Experience]
    episodes: Episodes
    state: StateRows | None = None
    counters: Counters = field(default_factory=dict)  # of this iteration alone


class Tally:
    """Running return and length of every environment's present episode."""

    def __init__(self, num_envs: int, group_specs: Sequence[GroupSpec]) -> None:
        self.group_specs = group_specs
        self.length = np.zeros(num_envs, np.int64)
        self.has_success = False  # the world knows whether episodes succeed
        self.running = {spec.group: np.zeros((num_envs, len(spec.agents))) for spec in group_specs}
        self._clear()

    def _clear(self) -> None:
        self.step_count = 0
        self.done: list[tuple[Array, ...]] = []
        self.returns: dict[str, list[Array]] = {spec.group: [] for spec in self.group_specs}

    def add(self, timestep: TimeStep, played: Array | None = None) -> None:
        """Add the rewards and ends of one step; `played` `[N]`: environments in which somebody acted, None: in all."""
        self.length += 1 if played is None else played
        for group_spec in self.group_specs:
            reward = timestep.agent_types[group_spec.agent_type].reward
            self.running[group_spec.group] += reward if group_spec.whole else reward[:, group_spec.columns]
        if timestep.ended.any():
            over = np.flatnonzero(timestep.ended)
            success = np.zeros(len(over), bool) if timestep.success is None else timestep.success[over]
            self.done.append((np.full(len(over), self.step_count), over, self.length[over], success))
            self.has_success = timestep.success is not None
            self.length[over] = 0
            for group, running in self.running.items():
                self.returns[group].append(running[over])
                running[over] = 0
        self.step_count += 1

    def drain(self) -> Episodes:
        """Return the episodes that ended since the last call."""
        if self.done:
            at, copy, length, success = (np.concatenate(column) for column in zip(*self.done, strict=True))
            returns = {group: np.concatenate(rows) for group, rows in self.returns.items()}
            episodes = Episodes(at, copy, length, returns, success if self.has_success else None)
        else:
            none = np.zeros(0, np.int64)
            returns = {spec.group: np.zeros((0, len(spec.agents))) for spec in self.group_specs}
            episodes = Episodes(none, none, none, returns, None)
        self._clear()
        return episodes

    def state(self) -> State:
        return {"length": self.length.copy(), "running": {group: a.copy() for group, a in self.running.items()}}

    def load(self, state: State) -> None:
        self.length = state["length"].copy()
        self.running = {group: array.copy() for group, array in state["running"].items()}


def someone_acted(acted: Mapping[str, tuple[View, Decision]]) -> Array:
    """[N] bool: environments that are not waiting for others to end their episodes."""
    return np.any([view.acting.any(axis=1) for view, _ in acted.values()], axis=0)


class Runner:
    """One shard: a world, the groups' actors, and the state that lasts from one iteration to the next."""

    def __init__(
        self, world: World, actors: Sequence[Actor], seed: int, shard: int = 0, greedy: bool = False, shards: int = 1
    ) -> None:
        self.progress: float | None = None  # fraction of the run's total steps taken; None outside of training
        self.step_count, self.frames_per_step = 0, world.num_envs * shards
        self.world, self.actors, self.seed, self.shard, self.greedy = world, actors, seed, shard, greedy
        self.keep_views = False  # views outlive the step: they hold copies of the world's arrays, which it writes over
        self.timestep = world.reset(seeding.integer(seed, "world", shard))
        self.tally = Tally(world.num_envs, [actor.group_spec for actor in actors])
        self.pending: dict[str, PendingTransitions] = {}
        self.random: dict[str, np.random.Generator] = {}  # group -> stream of this iteration, by `begin`
        self.memories = {
            actor.group_spec.group: np.zeros(
                (world.num_envs, len(actor.group_spec.agents), actor.policy.memory_size), np.float32
            )
            for actor in actors
            if actor.policy.memory_size
        }

    def play(self, steps: int, iteration: int, progress: float | None = None) -> Rollout:
        """Play `steps` steps of every environment."""
        self.begin(iteration)
        self.progress, self.step_count = progress, (iteration - 1) * steps
        offset = 0 if self.world.simultaneous else 1
        before = self.counters()
        writers = {}
        for actor in self.actors:
            name = actor.group_spec.group
            agent_step = self.timestep.agent_types[actor.group_spec.agent_type]
            writers[name] = RolloutBuffer(actor, self.world.num_envs, steps + offset, agent_step)
            if name in self.pending:
                writers[name].open(self.pending[name])
        states = None if self.timestep.state is None else StateBuffer(steps + offset, self.timestep.state)
        for t in range(offset, steps + offset):
            if states is not None and self.timestep.state is not None:
                states.seen(t, self.timestep.state)
            self.step(writers, t, states)
        experiences = {}
        for actor in self.actors:
            name = actor.group_spec.group
            experiences[name] = writers[name].finish(
                self.timestep.agent_types[actor.group_spec.agent_type], self.memories.get(name)
            )
            self.forget_departed(actor.group_spec)
        if not self.world.simultaneous:
            self.pending = {name: open_decisions(e) for name, e in experiences.items()}
        state = None if states is None or self.timestep.state is None else states.finish(self.timestep.state)
        return Rollout(experiences, self.tally.drain(), state, counted_since(before, self.counters()))

    def counters(self) -> Counters:
        """The world's counters since its reset."""
        return dict(getattr(self.world, "counters", dict)())

    def begin(self, iteration: int) -> None:
        """Derive the random streams of an iteration."""
        self.random = {
            actor.group_spec.group: seeding.generator(self.seed, "act", iteration, self.shard, actor.group_spec.group)
            for actor in self.actors
        }

    def step(
        self, writers: Mapping[str, RolloutBuffer] | None = None, t: int = 0, states: StateBuffer | None = None
    ) -> dict[str, tuple[View, Decision]]:
        """Let every group decide once and step the world; returns what each group saw and decided.

        With `writers`, row `t` of the rollout is written too.
        """
        actions: dict[str, Array] = {}
        acted: dict[str, tuple[View, Decision]] = {}
        for actor in self.actors:
            group_spec = actor.group_spec
            view, decision = actor.act(self.view(actor))
            acted[group_spec.group] = view, decision
            self.remember(group_spec, view, decision)
            if writers is not None:
                writers[group_spec.group].decided(t, view, decision)
            if group_spec.whole:
                actions[group_spec.agent_type] = decision.action
            else:
                if group_spec.agent_type not in actions:
                    space = group_spec.spaces.action
                    shape = (self.world.num_envs, len(group_spec.spaces.agents), *action_shape(space))
                    actions[group_spec.agent_type] = blank(shape, action_dtype(space))
                actions[group_spec.agent_type][:, group_spec.columns] = decision.action
        self.timestep = self.world.step(actions)
        self.tally.add(self.timestep, None if self.world.simultaneous else someone_acted(acted))
        self.step_count += 1
        if writers is not None:
            cut = cut_short(self.timestep)
            for actor in self.actors:
                name = actor.group_spec.group
                writers[name].arrived(
                    t, self.timestep.agent_types[actor.group_spec.agent_type], cut, self.memories.get(name)
                )
            if states is not None:
                states.arrived(self.timestep, cut)
        for memory in self.memories.values():
            memory[self.timestep.ended] = 0
        return acted

    def view(self, actor: Actor) -> View:
        """A group's view of the present time step."""
        group_spec, agent_step = actor.group_spec, self.timestep.agent_types[actor.group_spec.agent_type]
        select = picker(group_spec)

        def pick(array: Array) -> Array:
            part: Array = select(array)
            return part.copy() if self.keep_views else part

        return View(
            observation=map_tree(pick, agent_step.observation),
            acting=pick(agent_step.acting),
            agents=np.arange(len(group_spec.agents)) if actor.members is None else actor.members,
            random=self.random[group_spec.group],
            greedy=self.greedy,
            mask=None if agent_step.mask is None else pick(agent_step.mask),
            memory=self.memories.get(group_spec.group),
            world=self.world,
            agent_type=group_spec.agent_type,
            columns=group_spec.columns,
            progress=self.progress,
            step_count=self.step_count,
            frames=self.step_count * self.frames_per_step,
        )

    def remember(self, group_spec: GroupSpec, view: View, decision: Decision) -> None:
        """Keep the policy's memory of the agents that acted."""
        if decision.memory is not None:
            self.forget_departed(group_spec)
            old = self.memories[group_spec.group]
            self.memories[group_spec.group] = np.where(view.acting[..., None], decision.memory, old)

    def forget_departed(self, group_spec: GroupSpec) -> None:
        """Empty the memory of agents that ended on the way to the present step.

        It is called once that step is recorded: the value after a truncation depends on what the agent remembered.
        """
        if group_spec.group in self.memories:
            agent_step = self.timestep.agent_types[group_spec.agent_type]
            ended = picker(group_spec)(agent_step.terminated | agent_step.truncated)[..., None]
            self.memories[group_spec.group] = np.where(ended, np.float32(0), self.memories[group_spec.group])

    def save(self) -> State:
        """The state on which the next iteration depends."""
        return {
            "world": self.world.save(),
            "tally": self.tally.state(),
            "memories": {name: memory.copy() for name, memory in self.memories.items()},
            "openings": {name: _pending_state(pending) for name, pending in self.pending.items()},
            "actors": {actor.group_spec.group: [part.state() for part in actor.parts()] for actor in self.actors},
            "episodes": {
                actor.group_spec.group: actor.policy.episode_state(self.world)
                for actor in self.actors
                if isinstance(actor.policy, HasEpisodeState)
            },
        }

    def load(self, state: State) -> None:
        """Restore a saved state."""
        self.timestep = self.world.load(state["world"])
        self.tally.load(state["tally"])
        self.memories = {name: memory.copy() for name, memory in state["memories"].items()}
        self.pending = {name: _load_pending(held) for name, held in state["openings"].items()}
        for actor in self.actors:
            for part, held in zip(actor.parts(), state["actors"][actor.group_spec.group], strict=True):
                part.load(held)
            if isinstance(actor.policy, HasEpisodeState):
                actor.policy.load_episode_state(self.world, state["episodes"][actor.group_spec.group])


def play_episodes(runner: Runner, limit: int | None = None) -> Iterator[dict[str, tuple[View, Decision]]]:
    """Step the runner without end, yielding after each step what the groups saw and decided.

    Raises an error once an environment has gone `limit` steps (by default `patience`) without ending its episode,
    even if others end theirs: whoever waits for all of them would wait for ever. Raises `Interrupted` after a signal.
    """
    limit = patience(runner.world) if limit is None else limit
    runner.begin(0)
    elapsed = np.zeros(runner.world.num_envs, np.int64)
    start, ended, said = math.inf, False, not has_unknown_limit(runner.world)
    while True:
        leave_if_asked()
        acted = runner.step()
        elapsed = np.where(runner.timestep.ended, 0, elapsed + 1)
        endless = np.count_nonzero(elapsed > limit)
        if endless:
            raise CoterieError(
                f"{endless} of {len(elapsed)} environments did not end their episode within {limit:,} steps; "
                "set world.max_episode_steps, or the world's own time limit"
            )
        ended = ended or bool(runner.timestep.ended.any())
        if not said and not ended and (took := time.perf_counter() - start) > SLOW_EPISODE:
            said = True
            steps = int(elapsed.max())
            log.warning(
                "no episode has ended after %s steps and %.0f s, and no time limit is known; if episodes may never "
                "end, set world.max_episode_steps (without it an episode may last %s steps, about %.0f s)",
                f"{steps:,}",
                took,
                f"{limit:,}",
                took / (steps - 1) * limit,
            )
        if start == math.inf:  # the first step, which may compile and load models, says nothing of the others' time
            start = time.perf_counter()
        yield acted


def has_unknown_limit(world: World) -> bool:
    """Whether nobody knows after how many steps the world's episodes end at the latest."""
    return not getattr(world, "limits_episodes", True)


def patience(world: World) -> int:
    """Steps after which an episode counts as endless."""
    if not has_unknown_limit(world):
        return EPISODE_LIMIT
    agents = sum(len(agent_type.agents) for agent_type in world.agent_types.values())
    return PATIENCE * (1 if world.simultaneous else agents)


def _pending_state(pending: PendingTransitions) -> State:
    state: State = {name: getattr(pending, name) for name in PendingTransitions.__dataclass_fields__}
    return state | {"advice": None if pending.advice is None else pending.advice._asdict()}


def _load_pending(state: State) -> PendingTransitions:
    advice = state["advice"]
    return PendingTransitions(**state | {"advice": None if advice is None else Advice(**advice)})
