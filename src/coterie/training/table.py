"""A trained table: load a run, ask its agents for actions, evaluate it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import registry, schema
from coterie.core import seeding
from coterie.core.group import Group
from coterie.core.types import (
    ActionSpace,
    Array,
    CoterieError,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    State,
    Text,
    Tree,
    View,
    action_shape,
    arrays_of,
    entries_of,
    leading,
    map_tree,
)
from coterie.nn.threads import fixed_threads
from coterie.runs.run import Run
from coterie.training import build
from coterie.training.evaluate import Result, evaluate
from coterie.training.loop import evaluation_seed, teacher_actor

log = logging.getLogger("coterie")
TEACHER = "teacher"  # instead of a policy's name: the group's advisor
ROUNDING = 1e-5  # how far beyond a bound, relative to it, an observation may lie


@dataclass(frozen=True)
class Table:
    """A run's config and groups, with the weights of one checkpoint.

    A table remembers what `act` needs from one call to the next: each agent's random stream, and the memory of
    recurrent policies. Two tables of one run are independent of each other.
    """

    config: schema.Config
    groups: list[Group]
    env_steps: int  # at which the checkpoint was taken
    players: dict[str, str] = field(default_factory=dict)  # group -> who plays, in words
    _random: dict[str, np.random.Generator] = field(default_factory=dict, init=False, repr=False, compare=False)
    _memory: dict[str, Array] = field(default_factory=dict, init=False, repr=False, compare=False)  # [B, 1, M]

    def act(
        self, agent: str, observations: Tree, greedy: bool = True, mask: Array | None = None, seed: int | None = None
    ) -> Array:
        """Actions `[B, …]` of one agent for a batch of its observations `[B, …]`, in the format of its world.

        With `greedy=False` actions are drawn; every call draws anew from the agent's stream, which starts the same in
        every table. With a `seed`, this call alone draws from that seed. A recurrent policy remembers the earlier
        calls for this agent, row by row: call `reset` when episodes begin.

        `mask` `[B, actions]` says which actions are legal; without one, all are.

        NaN, infinity and numbers outside the observation space are refused. The bounds of third-party worlds
        (`gymnasium/…` and the like, except `minigrid/…`) are not checked, since not every environment keeps its own.
        What their environments say differs from what their worlds show: parts of dicts have flat names, pictures have
        their channels first, MiniGrid's symbols are scaled, and choices count from 0.
        """
        group = next((g for g in self.groups if agent in g.actor.group_spec.agents), None)
        if group is None:
            names = ", ".join(a for g in self.groups for a in g.actor.group_spec.agents)
            raise CoterieError(f"no agent '{agent}' at this table; there are {names}")
        group_spec = group.actor.group_spec
        _demand_shape(agent, group_spec.spaces.observation, observations)
        world = self.config.world.name
        bounded = "/" not in world or world.startswith("minigrid/")  # whose symbols the world itself scales
        _demand_values(agent, group_spec.spaces.observation, observations, bounded)
        members = np.arange(len(group_spec.agents)) if group.actor.members is None else group.actor.members
        kind = object if isinstance(group_spec.spaces.observation, Text) else None
        one = map_tree(lambda part: np.asarray(part, kind)[:, None], observations)
        count = len(leading(one))
        if agent not in self._random:
            self._random[agent] = seeding.generator(0, "ask", agent)
        view = View(
            observation=one,
            acting=np.ones((count, 1), bool),
            agents=members[[group_spec.agents.index(agent)]],
            random=self._random[agent] if seed is None else seeding.generator(seed, "ask", agent),
            greedy=greedy,
            mask=None if mask is None else _as_mask(agent, group_spec.spaces.action, mask, count)[:, None],
            memory=self._remembered(agent, count, group.policy.memory_size),
        )
        decision = group.actor.act(view)[1]
        if decision.memory is not None:
            self._memory[agent] = decision.memory
        return decision.action[:, 0]

    def reset(self, ended: Array | None = None, seed: int | None = None) -> None:
        """Empty the memory of recurrent policies, of all rows or of those where `ended` `[B]` is True.

        With a `seed`, the random streams of all agents start anew from it; without, they go on.
        """
        for agent, memory in list(self._memory.items()):
            if ended is None:
                del self._memory[agent]
                continue
            rows = np.asarray(ended)
            if rows.dtype != bool or rows.shape != memory.shape[:1]:
                raise CoterieError(
                    f"reset: expected {len(memory)} booleans, one per row of '{agent}', got {rows.dtype} {rows.shape}"
                )
            self._memory[agent] = np.where(rows[:, None, None], np.float32(0), memory)
        if seed is not None:
            self._random.update(
                {a: seeding.generator(seed, "ask", a) for g in self.groups for a in g.actor.group_spec.agents}
            )

    def _remembered(self, agent: str, count: int, size: int) -> Array | None:
        """The memory with which an agent's policy is asked; None for policies without one."""
        if not size:
            return None
        memory = self._memory.get(agent)
        if memory is None:
            return np.zeros((count, 1, size), np.float32)
        if len(memory) != count:
            raise CoterieError(
                f"'{agent}' remembers {len(memory)} episodes, got {count} observations; call table.reset() before "
                "another number of episodes"
            )
        return memory

    def evaluate(self, episodes: int = 100, seed: int = 0, greedy: bool = True) -> Result:
        """Play whole episodes on evaluation seeds."""
        actors = [group.actor for group in self.groups]
        world = build.build_evaluation_world(self.config.world, build.most_envs(actors, episodes))
        with fixed_threads(self.config.train.threads):
            return evaluate(world, actors, episodes, evaluation_seed(seed), greedy)


def _demand_shape(agent: str, space: ObservationSpace, observations: Tree) -> None:
    """Raise an error unless these are a batch of the agent's observations."""
    wanted, given = entries_of(space), arrays_of(observations)
    if given.keys() != wanted.keys():
        raise CoterieError(f"'{agent}' sees {_form(wanted)}, got {_form(given)}")
    for name, entry in wanted.items():
        own = np.shape(given[name])
        shape = () if isinstance(entry, Discrete | Text) else entry.shape
        if own[1:] != shape or not own:
            what = f"'{agent}'" + (f", '{name}'" if name else "")
            asked = ", ".join(map(str, ("B", *shape)))
            raise CoterieError(f"{what}: observations must be a batch [{asked}], got {list(own)}")


def _demand_values(agent: str, space: ObservationSpace, observations: Tree, bounded: bool) -> None:
    """Raise an error for NaN, infinity and, if `bounded`, numbers outside the space."""
    for name, entry in entries_of(space).items():
        given = np.asarray(arrays_of(observations)[name])
        what = f"'{agent}'" + (f", '{name}'" if name else "")
        if isinstance(entry, Text):
            if not all(isinstance(text, str) for text in given.tolist()):
                raise CoterieError(f"{what}: observations must be texts, got {given.dtype}")
            continue
        if given.dtype.kind not in "biuf":
            raise CoterieError(f"{what}: observations must be numbers, got {given.dtype}")
        if not len(given):
            continue
        least, most = given.min(axis=0), given.max(axis=0)  # NaN where there is one
        if not (np.isfinite(least).all() and np.isfinite(most).all()):
            raise CoterieError(f"{what}: observations must be finite, got {_first(~np.isfinite(given), given)}")
        if isinstance(entry, Discrete):
            low, high = np.zeros(()), np.asarray(entry.n - 1.0)
        elif bounded:
            low, high = (np.asarray(bound, float) for bound in (entry.low, entry.high))
        else:
            continue
        lowest, highest = low - ROUNDING * np.maximum(1, np.abs(low)), high + ROUNDING * np.maximum(1, np.abs(high))
        if (least < lowest).any() or (most > highest).any():
            outside = (given < lowest) | (given > highest)
            index = tuple(np.argwhere(outside)[0][1:])
            bounds = ", ".join(f"{np.broadcast_to(bound, given.shape[1:])[index]:g}" for bound in (low, high))
            raise CoterieError(f"{what}: observations must lie in [{bounds}], got {_first(outside, given)}")


def _as_mask(agent: str, action: ActionSpace, mask: Any, count: int) -> Array:
    """The mask as booleans; raise an error unless each of its rows has a legal action."""
    if not isinstance(action, Discrete):
        kind = "of several choices" if isinstance(action, MultiDiscrete) else "of numbers"
        raise CoterieError(f"'{agent}': actions {list(action_shape(action))} {kind} have no mask")
    given, expected = np.asarray(mask), (count, action.n)
    if given.shape != expected:
        raise CoterieError(f"'{agent}': the mask must have the shape {list(expected)}, got {list(given.shape)}")
    if given.dtype.kind not in "biu":
        raise CoterieError(f"'{agent}': the mask must hold True and False, got {given.dtype}")
    legal = given.astype(bool)
    if not legal.any(axis=1).all():
        raise CoterieError(f"'{agent}': no action is legal in row {int(np.argmin(legal.any(axis=1)))} of the mask")
    return legal


def _first(wrong: Array, given: Array) -> str:
    """The first wrong number and its index."""
    where = np.argwhere(wrong)[0]
    return f"{float(given[tuple(where)]):g} at {where.tolist()}"


def _form(parts: Mapping[str, object]) -> str:
    return "one array" if [*parts] == [""] else f"a dict of {', '.join(parts)}"


def load(
    path: str | Path,
    checkpoint: str = "best",
    overrides: list[str] | str | None = None,
    policy: str | None = None,
) -> Table:
    """Load the table of a run, as `coterie.load` describes."""
    run = Run.open(path)
    trained = run.config()
    if policy is not None and policy != TEACHER:
        kind, _, changes = policy.partition(":")  # such as alphabeta:depth=6
        if kind not in registry.UNTRAINED:
            known = ", ".join((TEACHER, *registry.UNTRAINED))
            raise CoterieError(f"--policy: expected one of {known}, got '{policy}'")
        given = [overrides] if isinstance(overrides, str) else list(overrides or [])
        learned = [name for name, group in trained.groups.items() if group.learner is not None]
        words = [f"={kind}", *(f".{change}" for change in schema.split_settings(changes))]
        overrides = [*given, *(f"groups.{name}.policy{word}" for name in learned for word in words)]
    settings = run.config(overrides)
    _demand_effect(schema.parse_overrides(overrides or []))
    saved: State = run.load_checkpoint(str(checkpoint))
    groups = build.build_groups(settings, build.build_world(settings.world, 1), learning=False, training=False)
    players = {}
    for group in groups:
        before, now = trained.groups.get(group.name), settings.groups[group.name].policy
        if before is None or not (_same_policy(before.policy, now) or _has_moved(before, now)):
            players[group.name] = _name(now, "untrained")
            continue
        weights = f"checkpoint {checkpoint} ({saved['env_steps']:,} steps)"
        players[group.name] = weights if saved["policies"][group.name] else _name(now, weights)
        try:
            group.policy.load(saved["policies"][group.name])
        except ValueError as error:
            raise CoterieError(str(error)) from None
    if policy == TEACHER:
        taught = [group.name for group in groups if group.actor.advisor is not None]
        if not taught:
            raise CoterieError(f"--policy teacher: no group of {path} has an advisor")
        groups = [Group(teacher_actor(g.actor)) if g.name in taught else g for g in groups]
        players |= dict.fromkeys(taught, TEACHER)
    return Table(settings, groups, saved["env_steps"], players)


def _demand_effect(changes: dict[str, Any]) -> None:
    """Refuse settings that a loaded table would ignore."""
    for key in changes:
        if key == "seed":
            raise schema.ConfigError(
                f"seed: the run's seed has no effect on play; the episodes' own is --seed {changes[key]}"
            )
        if key not in ("world", "groups"):
            raise schema.ConfigError(f"{key}: has no effect on play; only world.… and groups.… can be changed here")
    for name, group in changes.get("groups", {}).items():
        for key in ("learner", "preference"):
            if isinstance(group, dict) and group.get(key) not in (None, "none"):
                raise schema.ConfigError(f"groups.{name}.{key}: has no effect on play, where nobody learns")


def _name(policy: schema.Part | schema.SeatedRun, weights: str) -> str:
    """The player's name: a seated run, a policy that needs no training, or weights."""
    if isinstance(policy, schema.SeatedRun):
        return f"{policy.run}, checkpoint {policy.checkpoint}"
    return policy.name if policy.name in registry.UNTRAINED else weights


def _same_policy(left: schema.Part | schema.SeatedRun, right: schema.Part | schema.SeatedRun) -> bool:
    """Whether weights of one policy are meant for the other; `load` checks that they fit."""
    if isinstance(left, schema.Part) and isinstance(right, schema.Part):
        return left.name == right.name
    return left == right


def _has_moved(before: schema.GroupConfig, now: schema.Part | schema.SeatedRun) -> bool:
    """Whether `now` says where the run lies from which this group, which has learned since, took its policy."""
    old = before.policy
    if before.learner is None or not (isinstance(old, schema.SeatedRun) and isinstance(now, schema.SeatedRun)):
        return False
    return not Path(old.run).exists() and replace(old, run=now.run) == now
