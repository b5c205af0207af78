"""Conformance tests of policies and learners by name, in the spaces of a world: what `coterie check` runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from coterie.config import classes, registry, schema
from coterie.config.schema import ConfigError, Part
from coterie.core import lookup
from coterie.core.group import GroupSpec, Learner, Policy
from coterie.core.types import Discrete
from coterie.core.world import World
from coterie.testing import check_learner, check_policy
from coterie.training import build

COPIES = 3  # as many as the conformance tests draw views for
WORLDS = "spread:continuous_actions=true, tictactoe, plan_path, …"  # of continuous actions, for search, of texts


def check_policy_in(name: str, overrides: Sequence[str], world: str, random_greedy: bool) -> str:
    """Run the conformance tests on a policy, for every agent type of a world; returns what was found."""
    part = named(registry.POLICIES, name, overrides, "policy")
    made = build.build_world(named_world(world), COPIES)
    free = random_greedy or part.name in registry.UNTRAINED
    bound = part.name in registry.UNTRAINED or classes.policy(part.name).needs is not None
    checked = []
    for spec in specs(made, part, None):
        with naming_world(world):
            policy_of(part, spec, made)
        masked = has_masks(made, spec)
        for there in (made,) if bound else (None, made):  # views drawn from the spaces, and the world's own
            check_policy(lambda where: policy_of(part, where, made), spec, masked, not free, there)
        checked.append(f"{spec.agent_type} ({_count(spec)})")
    return f"{name}: passes the conformance tests in {world}: {', '.join(checked)}"


def check_learner_in(name: str, overrides: Sequence[str], policy: str | None, world: str) -> str:
    """Run the conformance tests on a learner with the policy that it improves; returns what was found."""
    part = named(registry.LEARNERS, name, overrides, "learner")
    kind = classes.learner(part.name)
    if not kind.needs_play:
        raise ConfigError(f"learner '{part.name}' learns from files, not from play; 'coterie clone' trains it")
    replays = hasattr(part.settings, "replay")
    if replays:  # a learner that waits for enough experience would not learn in a check
        replay = dataclasses.replace(part.settings.replay, learning_starts=1)
        part = Part(part.name, dataclasses.replace(part.settings, replay=replay))
    taught = named(registry.POLICIES, policy or taught_policy(part.name, kind), (), "policy")
    made, checked = build.build_world(named_world(world), COPIES), []
    for spec in specs(made, taught, part):
        with naming_world(world):
            policy_of(taught, spec, made)
        masked = has_masks(made, spec)
        check_learner(lambda where: learner_of(taught, part, where, made), spec, masked, replays)
        checked.append(f"{spec.agent_type} ({_count(spec)})")
    return f"{name} with {taught.name}: passes the conformance tests in {world}: {', '.join(checked)}"


@contextmanager
def naming_world(world: str) -> Iterator[None]:
    """Add the option to choose another world to what a part says that it refuses."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}; checked in '{world}', --world names another: {WORLDS}") from None


def named(table: dict[str, str], name: str, overrides: Sequence[str], kind: str) -> Part:
    """A component and its settings; overrides `policy.hidden=[8]` and `hidden=[8]` are the same."""
    head, settings = divide(name)
    words = [*settings, *(word.removeprefix(f"{kind}.") for word in overrides)]
    return schema.part(table, {"name": head} | schema.parse_overrides(words), kind)


def divide(name: str) -> tuple[str, list[str]]:
    """A name and the settings after a colon: `spread:max_steps=9,continuous_actions=true`, `pettingzoo/rps:env`."""
    divided = re.fullmatch(r"(.+?):([\w.]+=.*)", name)
    head, settings = divided.groups() if divided else (name, "")
    return head, schema.split_settings(settings)


def named_world(name: str, overrides: Sequence[str] = ()) -> Part:
    """A world and its settings."""
    return named(registry.WORLDS, name, overrides, "world")


def has_masks(world: World, spec: GroupSpec) -> bool:
    """Whether the world has action masks: where it has none, a policy need not obey any."""
    discrete = isinstance(spec.spaces.action, Discrete)
    return discrete and world.reset(0).agent_types[spec.agent_type].mask is not None


def specs(world: World, policy: Part, learner: Part | None) -> Iterator[GroupSpec]:
    """A group of all agents of each type, in a table where each type is a group."""
    groups = {
        name: schema.GroupConfig(agent_type.agents, policy, learner, individual())
        for name, agent_type in world.agent_types.items()
    }
    table = schema.Config(Part("checked", None), groups, schema.TrainSettings())
    for spec in build.build_group_specs(table, world).values():
        yield dataclasses.replace(spec, learns=learner is not None)


def taught_policy(name: str, kind: type[Learner]) -> str:
    """The policy that a learner improves, by its name in the table."""
    if not kind.teaches:
        raise ConfigError(
            f"--policy: learner '{name}' does not say which policy it improves; name one, or set its class attribute "
            "teaches"
        )
    return lookup.name_of(registry.POLICIES, kind.teaches[0])


def individual() -> Part:
    """The preference of a group that values rewards as they come."""
    return schema.part(registry.PREFERENCES, {}, "preference")


def policy_of(part: Part, spec: GroupSpec, world: World) -> Policy:
    return build.build_policy(part, spec, world)


def learner_of(policy: Part, learner: Part, spec: GroupSpec, world: World) -> Learner:
    """A new learner with a new policy."""
    group = schema.GroupConfig(spec.agents, policy, learner, individual())
    actor = build.build_actor(group, spec, world)
    made: Learner = build.build_learner(group, actor, build.build_preference(group, actor.group_spec))
    return made


def _count(spec: GroupSpec) -> str:
    return f"{len(spec.agents)} agent{'s' if len(spec.agents) != 1 else ''}"
