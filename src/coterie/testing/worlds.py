"""Conformance tests for worlds: `check_world`.

`check_world` plays random legal actions and checks what the world returns; each rule is one function below. A
violation raises `ContractError` with its location: step (0 is the reset), agent type, agent, copy. The rules for games
that can be searched are in `games.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.sampling import random_actions
from coterie.core.trees import arrays_of
from coterie.core.types import AgentType, Array, Box, Discrete, State, Text, TimeStep, entries_of
from coterie.core.world import Forkable, World
from coterie.testing.comparison import Location, check_array, expect, expect_inherits, text_valid
from coterie.testing.games import check_game
from coterie.testing.sampling import NUM_ENVS

ROLLOUTS = 8  # that the tests play, replays and halves included
REPORT_EVERY = 3.0  # seconds
WorldFactory = Callable[[int], World]  # num_envs → world
Snapshot = dict[tuple[str, str], Array]  # a copy of a time step: (agent type, field) → [N, A, …]


def check_world(
    world_factory: WorldFactory, steps: int = 200, seed: int = 0, report: Callable[[str], None] | None = None
) -> Summary:
    """Run the conformance tests on a world; raise `ContractError` at the first violation.

    `world_factory(num_envs)` builds the world. Different seeds may give equal rollouts: a world may be deterministic.
    `report` gets a line of progress every few seconds.
    """
    progress = Progress(ROLLOUTS * steps, report)

    def timed_factory(num_envs: int) -> World:
        return TimedWorld(world_factory(num_envs), progress)

    first = world_factory(NUM_ENVS)
    expect_inherits(first, World)
    check_agent_types(first)
    check_capabilities(first)
    world: World = TimedWorld(first, progress)
    rollout = record(world, steps, seed)
    check_somebody_acts(world, rollout)
    check_episodes(world, rollout)
    replay("same seed, new world", timed_factory(NUM_ENVS), rollout)
    replay("same seed, used world", world, rollout)
    check_idle_actions_ignored(timed_factory, rollout)
    check_save(timed_factory, rollout)
    check_copies_independent(timed_factory, rollout)
    check_fork(world_factory, rollout)
    check_game(world_factory(NUM_ENVS), steps, seed)
    episodes = sum(int(snapshot["", "ended"].sum()) for snapshot in rollout.snapshots)
    return Summary(episodes, progress.seconds / max(progress.env_steps, 1))


def check_capabilities(world: World) -> None:
    """A capability of several methods is there as a whole: with one of them alone a world would not count as able."""
    for names in (("frame", "ansi", "draws_final"), ("number_episodes", "pause")):
        found = [name for name in names if hasattr(world, name)]
        expect(len(found) in (0, len(names)), "capabilities", f"{', '.join(names)}, or none of them", ", ".join(found))


# Progress ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Further findings of `check_world`."""

    episodes: int  # that ended in the first rollout
    seconds_per_step: float  # of one copy


class Progress:
    """Counts steps and reports every few seconds how far the tests are."""

    def __init__(self, total: int, report: Callable[[str], None] | None) -> None:
        self.total, self.report = total, report
        self.steps, self.env_steps, self.seconds = 0, 0, 0.0
        self.due: float | None = None  # counts from the first step: kernels are compiled before

    def count(self, num_envs: int, seconds: float) -> None:
        """Count a step that took so long."""
        self.steps, self.env_steps, self.seconds = self.steps + 1, self.env_steps + num_envs, self.seconds + seconds
        if self.due is None:
            self.due = time.monotonic() + REPORT_EVERY
        if self.report is not None and time.monotonic() >= self.due:
            self.due = time.monotonic() + REPORT_EVERY
            left = self.seconds / self.steps * max(self.total - self.steps, 0)
            each = 1000 * self.seconds / self.env_steps
            self.report(f"step {self.steps} of about {self.total}, {each:.3g} ms a step of one copy, {left:.0f} s left")


class TimedWorld(World):
    """Passes on to a world what the tests call, and measures its steps."""

    def __init__(self, world: World, progress: Progress) -> None:
        self._world, self._progress = world, progress
        self.agent_types, self.num_envs = world.agent_types, world.num_envs
        self.simultaneous, self.state_size = world.simultaneous, world.state_size

    def reset(self, seed: int) -> TimeStep:
        """Reset the world."""
        return self._world.reset(seed)

    def save(self) -> State:
        """The state of the world."""
        return self._world.save()

    def load(self, state: State) -> TimeStep:
        """Return the world to a saved state."""
        return self._world.load(state)

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Step the world."""
        start = time.perf_counter()
        timestep = self._world.step(actions)
        self._progress.count(self._world.num_envs, time.perf_counter() - start)
        return timestep


# Rollouts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """Snapshots and actions of a rollout; one snapshot more than actions."""

    seed: int
    snapshots: list[Snapshot]
    actions: list[dict[str, Array]]


def record(world: World, steps: int, seed: int) -> Rollout:
    """Play random legal actions; check every time step, and that `step` does not change the passed actions."""
    random = seeding.generator(seed, "check_world")
    timestep = world.reset(seed)
    check_time_step(world, timestep, 0)
    rollout = Rollout(seed, [_snapshot(timestep)], [])
    _compare("reset", 0, world, _after_reset(rollout.snapshots[0]), rollout.snapshots[0])
    for step in range(1, steps + 1):
        actions = random_actions(timestep, world.agent_types, random)
        rollout.actions.append({name: action.copy() for name, action in actions.items()})
        timestep = world.step(actions)
        for name, before in rollout.actions[-1].items():
            unchanged = np.array_equal(before, actions[name])
            expect(unchanged, f"step {step}, agent type {name!r}", "the passed actions unchanged", "other values")
        check_time_step(world, timestep, step)
        rollout.snapshots.append(_snapshot(timestep))
    return rollout


def replay(title: str, world: World, rollout: Rollout) -> None:
    """The same seed and actions give the same time steps."""
    _compare(title, 0, world, rollout.snapshots[0], _snapshot(world.reset(rollout.seed)))
    for step, actions in enumerate(rollout.actions, 1):
        _compare(title, step, world, rollout.snapshots[step], _snapshot(world.step(actions)))


# Rules for one time step --------------------------------------------------------------------------------


def check_agent_types(world: World) -> None:
    """There are agents, their names differ, `num_envs` is as asked for, and `state_size` is a count."""
    expect(world.num_envs == NUM_ENVS, "world", f"{NUM_ENVS} copies", world.num_envs)
    size = world.state_size
    expect(isinstance(size, int) and size >= 0, "world", "state_size to be an integer of at least 0", repr(size))
    expect(len(world.agent_types) > 0, "world", "at least one agent type", "none")
    for name, agent_type in world.agent_types.items():
        expect(len(agent_type.agents) > 0, f"agent type {name!r}", "at least one agent", "none")
    agents = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    expect(len(set(agents)) == len(agents), "world", "agent names to differ across all agent types", agents)


def check_time_step(world: World, timestep: TimeStep, step: int) -> None:
    """Every array has its declared shape and type and lies inside its bounds."""
    where = f"step {step}"
    expect(
        set(timestep.agent_types) == set(world.agent_types),
        where,
        f"agent types {[*world.agent_types]}",
        [*timestep.agent_types],
    )
    check_array(where, "ended", timestep.ended, (world.num_envs,), "bool")
    if timestep.success is not None:
        check_array(where, "success", timestep.success, (world.num_envs,), "bool")
    _check_state(where, world, timestep)
    for name, agent_type in world.agent_types.items():
        agent_step, location = timestep.agent_types[name], Location(where, name, agent_type.agents)
        rows = (world.num_envs, len(agent_type.agents))
        for flag in ("acting", "terminated", "truncated"):
            check_array(str(location), flag, getattr(agent_step, flag), rows, "bool")
        check_array(str(location), "reward", agent_step.reward, rows, "float32")
        location.expect_all(np.isfinite(agent_step.reward), "a finite reward", agent_step.reward)
        location.expect_all(~(agent_step.terminated & agent_step.truncated), "terminated or truncated", "both")
        everywhere = np.ones(world.num_envs, bool)
        _check_observation(location, "observation", agent_type, agent_step.observation, everywhere)
        _check_observation(location, "final_observation", agent_type, agent_step.final_observation, timestep.ended)
        if agent_step.mask is not None:
            _check_mask(location, agent_type, agent_step.mask, agent_step.acting)


def _check_state(where: str, world: World, timestep: TimeStep) -> None:
    """The global state is as long as `state_size` says, and absent where that is 0."""
    for name, state in (("state", timestep.state), ("final_state", timestep.final_state)):
        if not world.state_size:
            expect(state is None, where, f"no {name} in a world whose state_size is 0", "one")
            continue
        check_array(where, name, state, (world.num_envs, world.state_size), "float32")
        assert state is not None  # checked above
        valid = np.isfinite(state) | ((name == "final_state") & ~timestep.ended[:, None])
        expect(valid.all(), where, f"finite numbers in {name}", state)


def _check_mask(location: Location, agent_type: AgentType, mask: Array, acting: Array) -> None:
    choices = agent_type.action.n if isinstance(agent_type.action, Discrete) else None
    expect(choices, str(location), f"no mask for {agent_type.action}", "one")
    check_array(str(location), "mask", mask, (*acting.shape, choices), "bool")
    location.expect_all(mask.any(-1) | ~acting, "a legal action in the mask of an acting agent", "none")


def _check_observation(location: Location, name: str, agent_type: AgentType, tree: Any, valid: Array) -> None:
    """`valid` `[N]` marks the copies whose values are defined."""
    parts, spaces = arrays_of(tree), entries_of(agent_type.observation)
    expect(set(parts) == set(spaces), str(location), f"{name} with entries {[*spaces]}", [*parts])
    for key, part in spaces.items():
        array, rows, label = parts[key], (len(valid), len(location.agents)), f"{name} {key}".strip()
        if isinstance(part, Text):
            check_array(str(location), label, array, rows, "object")
            location.expect_all(text_valid(part, array) | ~valid[:, None], f"{label} inside {part}", array)
            continue
        if isinstance(part, Box):
            check_array(str(location), label, array, rows + part.shape, part.dtype)
            low, high = (np.asarray(bound).astype(part.dtype) for bound in (part.low, part.high))
        else:
            check_array(str(location), label, array, rows, "int64")
            low, high = np.asarray(0), np.asarray(part.n - 1)
        ignored = ~valid.reshape(-1, *[1] * (array.ndim - 1))
        location.expect_all(np.isfinite(array) | ignored, f"a finite {label}", array)
        expected = f"{label} inside {part}" + " (or wider bounds there)" * isinstance(part, Box)
        location.expect_all(((array >= low) & (array <= high)) | ignored, expected, array)


# Rules for a rollout ------------------------------------------------------------------------------------


def check_episodes(world: World, rollout: Rollout) -> None:
    """An agent ends once and is idle from then on; a copy is reset only when all its agents have ended."""
    for name, agent_type in world.agent_types.items():
        alive = np.ones((world.num_envs, len(agent_type.agents)), bool)
        for step, snapshot in enumerate(rollout.snapshots):
            location, acting = Location(f"step {step}", name, agent_type.agents), snapshot[name, "acting"]
            ends = snapshot[name, "terminated"] | snapshot[name, "truncated"]
            location.expect_all(alive | ~ends, "an agent to end once", "a second end")
            alive &= ~ends
            reset = np.broadcast_to(snapshot["", "ended"][:, None], alive.shape)
            location.expect_all(~(alive & reset), "an end before the copy is reset", "none")
            alive |= reset
            location.expect_all(alive | ~acting, "an agent to be idle after its end", "acting")
            location.expect_all(
                acting | ~(alive & world.simultaneous), "all agents to act in a simultaneous world", "idle"
            )


def check_somebody_acts(world: World, rollout: Rollout) -> None:
    """Every copy has an acting agent, except between the end of an episode and the beginning of the next."""
    between = np.zeros(world.num_envs, bool)
    for step, snapshot in enumerate(rollout.snapshots):
        acting = np.any([snapshot[name, "acting"].any(axis=1) for name in world.agent_types], axis=0)
        between = (between | snapshot["", "ended"]) & ~acting
        missing = ~(acting | between)
        expect(not missing.any(), f"step {step}, copy {missing.argmax()}", "an acting agent", "none")


def check_idle_actions_ignored(world_factory: WorldFactory, rollout: Rollout) -> None:
    """Actions of idle agents have no effect."""
    actions = []
    for snapshot, given in zip(rollout.snapshots[:-1], rollout.actions, strict=True):
        actions.append({name: action.copy() for name, action in given.items()})
        for name, action in actions[-1].items():
            action[~snapshot[name, "acting"]] = "" if action.dtype == object else 0
    replay("zeros in idle rows", world_factory(NUM_ENVS), replace(rollout, actions=actions))


def check_save(world_factory: WorldFactory, rollout: Rollout) -> None:
    """A state saved half-way leads to the same time steps, in the same world and in a new one."""
    world, middle = world_factory(NUM_ENVS), len(rollout.actions) // 2
    world.reset(rollout.seed)
    for actions in rollout.actions[:middle]:
        world.step(actions)
    state = world.save()
    for actions in rollout.actions[middle:]:  # must not change the saved state
        world.step(actions)
    for title, other in (("load, same world", world), ("load, new world", world_factory(NUM_ENVS))):
        loaded = other.load(state)
        expect(isinstance(loaded, TimeStep), title, "a TimeStep, as reset returns it", type(loaded).__name__)
        _compare(title, middle, world, _after_reset(rollout.snapshots[middle]), _snapshot(loaded))
        for step, actions in enumerate(rollout.actions[middle:], middle + 1):
            _compare(title, step, world, rollout.snapshots[step], _snapshot(other.step(actions)))


def check_copies_independent(world_factory: WorldFactory, rollout: Rollout) -> None:
    """Copy 0 is the same when it is alone; the others are the same when copy 0 takes other actions."""
    snapshots = [{key: array[:1] for key, array in snapshot.items()} for snapshot in rollout.snapshots]
    given = [{name: action[:1] for name, action in actions.items()} for actions in rollout.actions]
    replay("copy 0 alone", world_factory(1), Rollout(rollout.seed, snapshots, given))

    world, random = world_factory(NUM_ENVS), seeding.generator(rollout.seed, "copy 0")
    timestep = world.reset(rollout.seed)
    for step, recorded in enumerate(rollout.actions, 1):
        actions = random_actions(timestep, world.agent_types, random)
        for name, action in actions.items():
            action[1:] = recorded[name][1:]
        timestep = world.step(actions)
        got = _snapshot(timestep)
        for key, array in rollout.snapshots[step].items():
            got[key][0] = array[0]  # copy 0 may differ, the others may not
        _compare("other actions in copy 0", step, world, rollout.snapshots[step], got)


def check_fork(world_factory: WorldFactory, rollout: Rollout) -> None:
    """In a fork, an action has the outcome that it has in the world; stepping the fork leaves the world as it is."""
    world, random = world_factory(NUM_ENVS), seeding.generator(rollout.seed, "fork")
    if not isinstance(world, Forkable):
        return
    timestep = world.reset(rollout.seed)
    outcomes = {"reward", "terminated", "truncated", "ended", "success"}
    for step, actions in enumerate(rollout.actions, 1):
        index = random.integers(world.num_envs, size=2 * world.num_envs)
        present = _snapshot(world.observe())
        _compare("observe", step - 1, world, _after_reset(rollout.snapshots[step - 1]), present)
        twin, other = world.fork(index), world.fork(np.arange(world.num_envs))
        expect(twin.num_envs == len(index), "fork", f"{len(index)} copies", twin.num_envs)
        got = _snapshot(twin.step({name: action[index] for name, action in actions.items()}))
        other.step(random_actions(timestep, world.agent_types, random))
        wanted = {key: a[index] for key, a in rollout.snapshots[step].items() if key[1] in outcomes}
        _compare("fork", step, world, wanted, {key: a for key, a in got.items() if key[1] in outcomes})
        timestep = world.step(actions)
        _compare("after a fork", step, world, rollout.snapshots[step], _snapshot(timestep))


# Comparing ----------------------------------------------------------------------------------------------


def _snapshot(timestep: TimeStep) -> Snapshot:
    """Copies of all arrays, because the world's next step may overwrite them."""
    snapshot: dict[tuple[str, str], Any] = {("", "ended"): timestep.ended, ("", "success"): timestep.success}
    for name, agent_step in timestep.agent_types.items():
        for spec in fields(agent_step):
            value = getattr(agent_step, spec.name)
            snapshot |= {(name, f"{spec.name} {key}".strip()): part for key, part in arrays_of(value).items()}
    return {key: array.copy() for key, array in snapshot.items() if array is not None}


def _after_reset(snapshot: Snapshot) -> Snapshot:
    """The snapshot as `reset` and `load` return it: no rewards, no ends."""
    empty = ("reward", "terminated", "truncated", "ended")
    return {key: np.zeros_like(array) if key[1] in empty else array for key, array in snapshot.items()}


def _compare(title: str, step: int, world: World, expected: Snapshot, got: Snapshot) -> None:
    """Raise `ContractError` unless two snapshots are equal wherever their values are defined."""
    where, ended = f"{title}: step {step}", expected["", "ended"]
    expect(expected.keys() == got.keys(), where, f"fields {[*expected]}", [*got])
    for (name, field), array in expected.items():
        location = Location(where, name, world.agent_types[name].agents if name else ())
        check_array(str(location), field, got[name, field], array.shape, array.dtype)
        equal = array == got[name, field]
        if field.startswith(("final_observation", "success")):  # defined only where an episode has ended
            equal |= ~ended.reshape(-1, *[1] * (equal.ndim - 1))
        location.expect_all(equal, array, got[name, field], f"{field} ")
