"""What every world must keep, as checks that anyone can run on their own; import them from `testing.py`.

`check_world` plays random legal actions and compares what the world says with what it promises; each
promise is one function below. A broken one raises `ContractError`, which says where: step (0 is the
reset), kind, agent, copy. Whether a world is worth playing is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.types import AgentStep, AgentType, Array, Box, CoterieError, Dict, Discrete, MultiDiscrete, TimeStep
from coterie.core.world import World

COPIES = 3
WorldFactory = Callable[[int], World]  # copies → world
Moment = dict[tuple[str, str], Array]  # a copy of all that was told: (kind, field) → [N, A, …]


class ContractError(CoterieError):
    """Something breaks a promise of the library's protocols."""


def check_world(world_factory: WorldFactory, steps: int = 200, seed: int = 0) -> None:
    """Raise `ContractError` unless worlds built by `world_factory(num_envs)` keep the `World` contract.

    That another seed gives another rollout is not demanded: a world without chance has only one.
    """
    world = world_factory(COPIES)
    check_kinds(world)
    rollout = record(world, steps, seed)
    check_episodes(world, rollout)
    replay("same seed, new world", world_factory(COPIES), rollout)
    replay("same seed, used world", world, rollout)
    check_idle_actions_ignored(world_factory, rollout)
    check_save(world_factory, rollout)
    check_copies_independent(world_factory, rollout)


# Playing ----------------------------------------------------------------------------------------------


def random_actions(
    timestep: TimeStep, agent_types: Mapping[str, AgentType], random: np.random.Generator
) -> dict[str, Array]:
    """Uniform legal actions for every agent, `[N, A, …]` for each kind; boxes without a bound end at ±10."""
    return {name: draw(agent_type, timestep.agent_types[name], random) for name, agent_type in agent_types.items()}


def draw(agent_type: AgentType, agent_step: AgentStep, random: np.random.Generator) -> Array:
    rows = agent_step.acting.shape
    match agent_type.action:
        case Discrete(n):
            mask = np.ones((*rows, n), bool) if agent_step.mask is None else agent_step.mask
            return np.where(mask, random.random(mask.shape), -1.0).argmax(-1)
        case MultiDiscrete(sizes):
            return random.integers(sizes, size=(*rows, len(sizes)))
        case Box(shape, low, high):
            low, high = (np.nan_to_num(np.float64(b), posinf=10.0, neginf=-10.0) for b in (low, high))
            return random.uniform(low, high, size=(*rows, *shape)).astype(np.float32)


@dataclass(frozen=True)
class Rollout:
    """What was done and what the world said, one moment more than actions."""

    seed: int
    moments: list[Moment]
    actions: list[dict[str, Array]]


def record(world: World, steps: int, seed: int) -> Rollout:
    """Play random legal actions, checking each tick and that `step` leaves the passed actions alone."""
    random = seeding.generator(seed, "check_world")
    timestep = world.reset(seed)
    check_time_step(world, timestep, 0)
    rollout = Rollout(seed, [_moment(timestep)], [])
    _compare("reset", 0, world, _at_rest(rollout.moments[0]), rollout.moments[0])
    for step in range(1, steps + 1):
        actions = random_actions(timestep, world.agent_types, random)
        rollout.actions.append({name: action.copy() for name, action in actions.items()})
        timestep = world.step(actions)
        for name, before in rollout.actions[-1].items():
            unchanged = np.array_equal(before, actions[name])
            require(unchanged, f"step {step}, kind {name!r}", "the passed actions unchanged", "other values")
        check_time_step(world, timestep, step)
        rollout.moments.append(_moment(timestep))
    return rollout


def replay(title: str, world: World, rollout: Rollout) -> None:
    """The same seed and actions give the same ticks."""
    _compare(title, 0, world, rollout.moments[0], _moment(world.reset(rollout.seed)))
    for step, actions in enumerate(rollout.actions, 1):
        _compare(title, step, world, rollout.moments[step], _moment(world.step(actions)))


# Promises about one tick --------------------------------------------------------------------------------


def check_kinds(world: World) -> None:
    """There are agents, no two share a name, and the world has the copies that it was asked for."""
    require(world.num_envs == COPIES, "world", f"{COPIES} copies", world.num_envs)
    require(len(world.agent_types) > 0, "world", "at least one kind", "none")
    for name, agent_type in world.agent_types.items():
        require(len(agent_type.agents) > 0, f"kind {name!r}", "at least one agent", "none")
    agents = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    require(len(set(agents)) == len(agents), "world", "agent names to differ, across kinds too", agents)


def check_time_step(world: World, timestep: TimeStep, step: int) -> None:
    """Every array has its declared shape and type, lies inside its bounds, and somebody acts."""
    where = f"step {step}"
    require(
        set(timestep.agent_types) == set(world.agent_types),
        where,
        f"ticks of {[*world.agent_types]}",
        [*timestep.agent_types],
    )
    check_array(where, "ended", timestep.ended, (world.num_envs,), "bool")
    if timestep.success is not None:
        check_array(where, "success", timestep.success, (world.num_envs,), "bool")
    for name, agent_type in world.agent_types.items():
        agent_step, group_spec = timestep.agent_types[name], Where(where, name, agent_type.agents)
        rows = (world.num_envs, len(agent_type.agents))
        for flag in ("acting", "terminated", "truncated"):
            check_array(str(group_spec), flag, getattr(agent_step, flag), rows, "bool")
        check_array(str(group_spec), "reward", agent_step.reward, rows, "float32")
        group_spec.demand(np.isfinite(agent_step.reward), "a finite reward", agent_step.reward)
        group_spec.demand(~(agent_step.terminated & agent_step.truncated), "terminated or truncated", "both")
        everywhere = np.ones(world.num_envs, bool)
        _check_observation(group_spec, "observation", agent_type, agent_step.observation, everywhere)
        _check_observation(group_spec, "final_observation", agent_type, agent_step.final_observation, timestep.ended)
        if agent_step.mask is not None:
            _check_mask(group_spec, agent_type, agent_step.mask, agent_step.acting)
    somebody = np.any([agent_step.acting.any(1) for agent_step in timestep.agent_types.values()], axis=0)
    require(somebody.all(), f"{where}, copy {somebody.argmin()}", "somebody acting", "nobody")


def _check_mask(group_spec: Where, agent_type: AgentType, mask: Array, acting: Array) -> None:
    choices = agent_type.action.n if isinstance(agent_type.action, Discrete) else None
    require(choices, str(group_spec), f"no mask beside {agent_type.action}", "one")
    check_array(str(group_spec), "mask", mask, (*acting.shape, choices), "bool")
    group_spec.demand(mask.any(-1) | ~acting, "a legal action in the mask of who acts", "none")


def _check_observation(group_spec: Where, name: str, agent_type: AgentType, tree: Any, valid: Array) -> None:
    """`valid` [N] says in which copies the values mean something."""
    parts: dict[str, Any] = tree if isinstance(tree, dict) else {"": tree}
    spaces = (
        agent_type.observation.entries if isinstance(agent_type.observation, Dict) else {"": agent_type.observation}
    )
    require(set(parts) == set(spaces), str(group_spec), f"{name} with entries {[*spaces]}", [*parts])
    for key, part in spaces.items():
        array, rows, label = parts[key], (len(valid), len(group_spec.agents)), f"{name} {key}".strip()
        if isinstance(part, Box):
            check_array(str(group_spec), label, array, rows + part.shape, part.dtype)
            low, high = (np.asarray(bound).astype(part.dtype) for bound in (part.low, part.high))
        else:
            check_array(str(group_spec), label, array, rows, "int64")
            low, high = np.asarray(0), np.asarray(part.n - 1)
        ignored = ~valid.reshape(-1, *[1] * (array.ndim - 1))
        group_spec.demand(np.isfinite(array) | ignored, f"a finite {label}", array)
        group_spec.demand(((array >= low) & (array <= high)) | ignored, f"{label} inside {part}", array)


# Promises about a rollout -------------------------------------------------------------------------------


def check_episodes(world: World, rollout: Rollout) -> None:
    """An agent ends once and is idle from then on; a copy is reset only when all its agents have ended."""
    for name, agent_type in world.agent_types.items():
        alive = np.ones((world.num_envs, len(agent_type.agents)), bool)
        for step, moment in enumerate(rollout.moments):
            group_spec, acting = Where(f"step {step}", name, agent_type.agents), moment[name, "acting"]
            ends = moment[name, "terminated"] | moment[name, "truncated"]
            group_spec.demand(alive | ~ends, "an end to be told once", "a second one")
            alive &= ~ends
            reset = np.broadcast_to(moment["", "ended"][:, None], alive.shape)
            group_spec.demand(~(alive & reset), "an end before the copy is reset", "none")
            alive |= reset
            group_spec.demand(alive | ~acting, "an agent to be idle after its end", "acting")
            group_spec.demand(acting | ~(alive & world.simultaneous), "all to act in a simultaneous world", "idle")


def check_idle_actions_ignored(factory: WorldFactory, rollout: Rollout) -> None:
    """What stands in the rows of idle agents makes no difference."""
    actions = []
    for moment, given in zip(rollout.moments[:-1], rollout.actions, strict=True):
        actions.append({name: action.copy() for name, action in given.items()})
        for name, action in actions[-1].items():
            action[~moment[name, "acting"]] = 0
    replay("zeros in idle rows", factory(COPIES), replace(rollout, actions=actions))


def check_save(factory: WorldFactory, rollout: Rollout) -> None:
    """A state saved half-way leads to the same ticks, in the same world and in one just built."""
    world, middle = factory(COPIES), len(rollout.actions) // 2
    world.reset(rollout.seed)
    for actions in rollout.actions[:middle]:
        world.step(actions)
    state = world.save()
    for actions in rollout.actions[middle:]:  # must not leak into what was saved
        world.step(actions)
    for title, other in (("load, same world", world), ("load, new world", factory(COPIES))):
        _compare(title, middle, world, _at_rest(rollout.moments[middle]), _moment(other.load(state)))
        for step, actions in enumerate(rollout.actions[middle:], middle + 1):
            _compare(title, step, world, rollout.moments[step], _moment(other.step(actions)))


def check_copies_independent(factory: WorldFactory, rollout: Rollout) -> None:
    """Copy 0 is the same when it is alone, and the others are the same when it plays otherwise."""
    moments = [{key: array[:1] for key, array in moment.items()} for moment in rollout.moments]
    given = [{name: action[:1] for name, action in actions.items()} for actions in rollout.actions]
    replay("copy 0 alone", factory(1), Rollout(rollout.seed, moments, given))

    world, random = factory(COPIES), seeding.generator(rollout.seed, "copy 0")
    timestep = world.reset(rollout.seed)
    for step, recorded in enumerate(rollout.actions, 1):
        actions = random_actions(timestep, world.agent_types, random)
        for name, action in actions.items():
            action[1:] = recorded[name][1:]
        timestep = world.step(actions)
        got = _moment(timestep)
        for key, array in rollout.moments[step].items():
            got[key][0] = array[0]  # copy 0 may differ, the others may not
        _compare("other actions in copy 0", step, world, rollout.moments[step], got)


# Comparing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """Where we are looking; turns the first wrong entry of an array `[N, A, …]` into a message."""

    step: str
    agent_type: str
    agents: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.step}, kind {self.agent_type!r}" if self.agent_type else self.step

    def demand(self, good: Array, expected: Array | str, got: Array | str, what: str = "") -> None:
        if good.all():
            return
        copy, *rest = index = tuple(int(i) for i in np.argwhere(~good)[0])
        agent = f", agent {self.agents[rest[0]]!r}" if rest else ""
        entry = f", entry {rest[1:]}" if rest[1:] else ""
        said, seen = (x if isinstance(x, str) else x[index] for x in (expected, got))
        raise ContractError(f"{self}{agent}, copy {copy}{entry}: expected {what}{said}, got {seen}")


def require(good: Any, where: str, expected: str, got: Any) -> None:
    if not good:
        raise ContractError(f"{where}: expected {expected}, got {got}")


def check_array(where: str, name: str, array: Any, shape: tuple[Any, ...], dtype: Any) -> None:
    require(isinstance(array, np.ndarray), where, f"{name} to be an array", type(array).__name__)
    require(array.shape == shape, where, f"{name} of shape {shape}", array.shape)
    require(array.dtype == np.dtype(dtype), where, f"{name} of type {dtype}", array.dtype)


def _moment(timestep: TimeStep) -> Moment:
    """Copies of all arrays, which outlive the world's next step."""
    moment: dict[tuple[str, str], Any] = {("", "ended"): timestep.ended, ("", "success"): timestep.success}
    for name, agent_step in timestep.agent_types.items():
        for spec in fields(agent_step):
            value = getattr(agent_step, spec.name)
            parts = value if isinstance(value, dict) else {"": value}
            moment |= {(name, f"{spec.name} {key}".strip()): part for key, part in parts.items()}
    return {key: array.copy() for key, array in moment.items() if array is not None}


def _at_rest(moment: Moment) -> Moment:
    """The same moment as `reset` and `load` tell it: nothing earned, nothing ended."""
    empty = ("reward", "terminated", "truncated", "ended")
    return {key: np.zeros_like(array) if key[1] in empty else array for key, array in moment.items()}


def _compare(title: str, step: int, world: World, expected: Moment, got: Moment) -> None:
    """Equal wherever the values mean something."""
    where, ended = f"{title}: step {step}", expected["", "ended"]
    require(expected.keys() == got.keys(), where, f"fields {[*expected]}", [*got])
    for (name, field), array in expected.items():
        group_spec = Where(where, name, world.agent_types[name].agents if name else ())
        check_array(str(group_spec), field, got[name, field], array.shape, array.dtype)
        equal = array == got[name, field]
        if field.startswith(("final_observation", "success")):  # valid only where a copy has ended
            equal |= ~ended.reshape(-1, *[1] * (equal.ndim - 1))
        group_spec.demand(equal, array, got[name, field], f"{field} ")
