"""From a config to objects: worlds, groups, tables and runners. Capabilities are checked here, once."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.config import registry
from coterie.config.schema import Config, ConfigError, GroupConfig, Part, SeatedRun
from coterie.core import lookup
from coterie.core.group import Actor, Group, GroupSpec, HasProbe, Policy, Preference, Risk
from coterie.core.types import CoterieError, UnknownName
from coterie.core.world import World, state_size_of
from coterie.nn.packing import joined_size
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.training.language_models import refuse_split_budgets, refuse_unknown_models
from coterie.training.runner import Runner

SERVES = {"interim": "whose critic predicts distributions", "episodic": "that values whole episodes"}
NEEDS = {"Guided": "brings its own reference player", "Renderable": "can be looked at"}


def build_world(part: Part, num_envs: int) -> World:
    """The world of a config with that many copies."""
    try:
        world: World = lookup.look_up(registry.WORLDS, part.name)(part.settings, num_envs)
    except UnknownName as error:
        raise ConfigError(f"world.name: {error}") from None
    except ValueError as error:
        raise ConfigError(f"world: {error}") from None
    return world


def build_stage(part: Part) -> World:
    """One copy to be looked at; guests draw only when they are made for it."""
    settings = part.settings
    if any(spec.name == "render" for spec in dataclasses.fields(settings)):
        settings = dataclasses.replace(settings, render=True)
    return build_world(Part(part.name, settings), 1)


def build_group_specs(config: Config, world: World) -> dict[str, GroupSpec]:
    """Who sits where: every agent in exactly one group, every group inside one kind."""
    seated: dict[str, str] = {}
    group_specs = {}
    every = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    for name, group in config.groups.items():
        members = [agent for agent in every if any(fnmatch.fnmatchcase(agent, p) for p in group.agents)]
        path = f"groups.{name}.agents"
        if not members:
            raise ConfigError(f"{path}: no agent is called {' or '.join(group.agents)}; there are {', '.join(every)}")
        for agent in members:
            if agent in seated:
                raise ConfigError(f"{path}: '{agent}' already sits in group '{seated[agent]}'")
            seated[agent] = name
        agent_types = [
            agent_type for agent_type, spaces in world.agent_types.items() if any(a in spaces.agents for a in members)
        ]
        if len(agent_types) > 1:
            raise ConfigError(f"{path}: agents of different kinds ({', '.join(agent_types)}) cannot share a group")
        spaces = world.agent_types[agent_types[0]]
        columns = np.array([spaces.agents.index(agent) for agent in members])
        group_specs[name] = GroupSpec(
            name,
            agent_types[0],
            spaces,
            tuple(members),
            columns,
            group.parameters,
            config.seed,
            state_size_of(world) or joined_size(world.agent_types),
            world.simultaneous,
            world=world,
        )
    missing = [agent for agent in every if agent not in seated]
    if missing:
        raise ConfigError(f"groups: nobody plays {', '.join(missing)}; put them into a group")
    table = tuple(group_spec.info for group_spec in group_specs.values())
    return {name: dataclasses.replace(group_spec, table=table) for name, group_spec in group_specs.items()}


def build_actor(group: GroupConfig, group_spec: GroupSpec, world: World) -> Actor:
    """A group's policy in its place, and who sits beside it."""
    group_spec, parts = build_company(group, group_spec)
    if group_spec.advice is not None:
        check_advice(group, group_spec.group, group_spec.advice.use.mode)
    return dataclasses.replace(build_group_actor(group.policy, group_spec, world, group.learner is not None), **parts)


def build_company(group: GroupConfig, group_spec: GroupSpec) -> tuple[GroupSpec, dict[str, Any]]:
    """Who sits beside a group's policy, by their place in a `Actor`, and the place where advice is known of."""
    parts: dict[str, Any] = {}
    for name, key, table, chosen in (
        ("advisor", "advisor", registry.ADVISORS, group.advisor),
        ("shield", "constraints", registry.SHIELDS, group.constraints),
    ):
        if chosen is not None:
            try:
                parts[name] = lookup.look_up(table, chosen.name)(chosen.settings, group_spec)
            except ValueError as error:
                raise ConfigError(f"groups.{group_spec.group}.{key}: {error}") from None
    if "advisor" in parts:
        group_spec = dataclasses.replace(group_spec, advice=parts["advisor"].advice_use)
    return group_spec, parts


def check_advice(group: GroupConfig, name: str, mode: str) -> None:
    """Refuse an advisor whose advice the group's learner cannot follow."""
    learner = None if group.learner is None else group.learner.name
    able = [other for other in registry.LEARNERS if mode in advice_modes(other)]
    if learner is None or mode not in advice_modes(learner):
        who = "the group has no learner" if learner is None else f"'{learner}' does not"
        cure = " or ".join(f"groups.{name}.learner.name={other}" for other in able)
        raise ConfigError(f"groups.{name}.advisor: use.mode={mode} needs a learner that supports it; {who}; set {cure}")


def advice_modes(learner: str) -> tuple[str, ...]:
    """The advice modes that a learner supports."""
    served: tuple[str, ...] = getattr(
        lookup.look_up(registry.LEARNERS, learner), "advice_modes", ()
    )  # a class attribute
    return served


def build_group_actor(chosen: Part | SeatedRun, group_spec: GroupSpec, world: World, learns: bool) -> Actor:
    """A group's policy in its place; one seated from an earlier run comes with its weights."""
    if isinstance(chosen, SeatedRun):
        return build_run_actor(chosen, group_spec, world, learns)
    return Actor(group_spec, build_policy(chosen, group_spec, world))


def build_policy(chosen: Part, group_spec: GroupSpec, world: World) -> Policy:
    """A policy by name, without any weights of an earlier run."""
    path = f"groups.{group_spec.group}.policy"
    made = lookup.look_up(registry.POLICIES, chosen.name)
    needs = getattr(made, "needs", None)  # a class attribute: the capability it asks of the world
    if needs is not None and not isinstance(world, needs):
        raise ConfigError(
            f"group '{group_spec.group}': policy '{chosen.name}' needs a world with the capability "
            f"{needs.__name__}; '{type(world).__name__}' does not have it"
        )
    try:
        policy: Policy = made(chosen.settings, group_spec)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return policy


def build_run_actor(seated: SeatedRun, group_spec: GroupSpec, world: World, learns: bool) -> Actor:
    """A group of an earlier run in this place, with its weights.

    Where the group had other agents than this one (a shared network knows how many), it keeps its own build
    and plays as those of its agents that bear the same names, or as its first ones. One that goes on
    learning must fit as it is.
    """
    from coterie.training import run

    try:
        directory = run.Run.open(seated.run)
        earlier = directory.config()
        name = earlier_group(seated, group_spec, earlier)
        saved = directory.load_checkpoint(seated.checkpoint)["policies"][name]
    except ConfigError:
        raise
    except CoterieError as error:
        raise ConfigError(f"groups.{group_spec.group}.policy: {error}") from None
    group_spec, company = company_of(earlier.groups[name], group_spec)
    try:
        policy = build_group_actor(earlier.groups[name].policy, group_spec, world, learns).policy
        policy.load(saved)
        return Actor(group_spec, policy, **company)
    except ValueError as error:
        stage = build_world(earlier.world, 1)
        before = dataclasses.replace(build_group_specs(earlier, stage)[name], advice=group_spec.advice)
        alike = (before.spaces.observation, before.spaces.action) == (
            group_spec.spaces.observation,
            group_spec.spaces.action,
        )
        if learns or not alike:
            raise ConfigError(f"groups.{group_spec.group}.policy: {error}") from None
    policy = build_group_actor(earlier.groups[name].policy, before, stage, learns).policy
    policy.load(saved)
    own = before.agents
    members = [own.index(a) if a in own else i % len(own) for i, a in enumerate(group_spec.agents)]
    return Actor(group_spec, policy, np.array(members), **company)


def company_of(group: GroupConfig, group_spec: GroupSpec) -> tuple[GroupSpec, dict[str, Any]]:
    """Who comes along with a group of an earlier run: its rules hold wherever it plays, hints it cannot do without."""
    told, company = build_company(group, group_spec)
    advisor = company.get("advisor")
    if advisor is None or advisor.in_evaluation:
        return told, company
    return group_spec, {name: part for name, part in company.items() if name != "advisor"}  # it advised the learner


def earlier_group(seated: SeatedRun, group_spec: GroupSpec, earlier: Config) -> str:
    """Which group of an earlier run is meant."""
    name = seated.group or (group_spec.group if group_spec.group in earlier.groups else None)
    path = f"groups.{group_spec.group}.policy.group"
    if name is None:
        if len(earlier.groups) > 1:
            raise ConfigError(f"{path}: {seated.run} has the groups {', '.join(earlier.groups)}; name one")
        name = next(iter(earlier.groups))
    if name not in earlier.groups:
        raise ConfigError(f"{path}: {seated.run} has no group '{name}'")
    return name


def build_groups(config: Config, world: World, learning: bool = True, training: bool = True) -> list[Group]:
    """All groups of the table in the config's order.

    `learning`: build their learners too. `training`: the groups play in a training, here or in a child process.
    """
    groups = []
    if config.train.workers:
        refuse_split_budgets(config.groups)
    if learning:  # groups that only play may never ask the advisor that taught them
        refuse_unknown_models(config.groups)
    for name, group_spec in build_group_specs(config, world).items():
        group = config.groups[name]
        learns = training and group.learner is not None
        actor = build_actor(group, dataclasses.replace(group_spec, learns=learns), world)
        preference = build_preference(group, actor.group_spec) if learning and group.learner is not None else None
        learner = None if preference is None else build_learner(group, actor, preference)
        groups.append(Group(actor, learner, preference))
    return groups


def build_preference(group: GroupConfig, group_spec: GroupSpec) -> Preference:
    """How a learning group values its rewards."""
    assert group.learner is not None
    gamma = getattr(group.learner.settings, "gamma", 1.0)  # a user's own learner may have no discount
    try:
        preference: Preference = lookup.look_up(registry.PREFERENCES, group.preference.name)(
            group.preference.settings, group_spec, gamma
        )
    except ValueError as error:
        raise ConfigError(f"groups.{group_spec.group}.preference: {error}") from None
    check_scope(group, preference, group_spec)
    return preference


def build_learner(group: GroupConfig, actor: Actor, preference: Preference) -> Any:
    """What improves the group."""
    assert group.learner is not None
    group_spec, policy = actor.group_spec, actor.policy
    made = lookup.look_up(registry.LEARNERS, group.learner.name)
    wanted = getattr(made, "teaches", None)  # a class attribute: the policies it can improve
    if wanted is not None and not isinstance(policy, (wanted, *getattr(made, "also_teaches", ()))):
        raise ConfigError(
            f"group '{group_spec.group}': learner '{group.learner.name}' improves a {wanted.__name__}, "
            f"not a {type(policy).__name__}{_cure(group_spec, wanted)}"
        )
    if actor.shield is not None:
        try:
            preference = actor.shield.charge(preference)
        except ValueError as error:
            raise ConfigError(f"groups.{group_spec.group}.constraints: {error}") from None
    try:
        return made(group.learner.settings, policy, group_spec, preference)
    except ValueError as error:
        raise ConfigError(f"groups.{group_spec.group}.learner: {error}") from None


def check_scope(group: GroupConfig, preference: Preference, group_spec: GroupSpec) -> None:
    """Refuse a preference whose scope the group's learner does not serve."""
    assert group.learner is not None
    path, learner, name = f"groups.{group_spec.group}", group.learner.name, group.preference.name
    scope = getattr(preference, "scope", "step")  # a user's own preference may leave it out
    if scope not in ("step", *SERVES):
        raise ConfigError(f"{path}.preference: '{name}' has the scope '{scope}'; there are step, {', '.join(SERVES)}")
    if scope != "step" and not isinstance(preference, Risk):
        raise ConfigError(
            f"{path}.preference: '{name}' with scope {scope} must have risk_parameters, value and influence"
        )
    served = scopes(learner)
    if scope not in served:
        others = [f"{path}.preference.scope={other}" for other in served if other != "step"]
        able = [f"{path}.learner.name={other}" for other in registry.LEARNERS if scope in scopes(other)]
        raise ConfigError(
            f"{path}.preference.scope: '{name}' with scope {scope} needs a learner {SERVES.get(scope, 'of rewards')}; "
            f"'{learner}' serves {' and '.join(served)}; set {' or '.join(others + able)}"
        )


def scopes(learner: str) -> tuple[str, ...]:
    """The scopes of preferences that a learner serves."""
    served: tuple[str, ...] = getattr(
        lookup.look_up(registry.LEARNERS, learner), "scopes", ("step",)
    )  # a class attribute
    return served


def _cure(group_spec: GroupSpec, wanted: type[Any]) -> str:
    """How to name the policy that a learner wants, if it has a name here."""
    address = f"{wanted.__module__}:{wanted.__qualname__}"
    name = next((name for name, known in registry.POLICIES.items() if known == address), None)
    return "" if name is None else f"; set groups.{group_spec.group}.policy.name={name}"


def build_runner(config: Config, shard: int, groups: Sequence[Group]) -> Runner:
    """One shard of the config's world with everybody seated."""
    world = build_world(config.world, config.train.num_envs // config.train.shards)
    return Runner(world, [group.actor for group in groups], config.seed, shard, shards=config.train.shards)


def probe_learners(config: Config, groups: Sequence[Group]) -> None:
    """Show one step of random play to the learners that have to see the world before they accept it."""
    if not any(isinstance(group.learner, HasProbe) for group in groups):
        return
    specs = [group.actor.group_spec for group in groups]
    actors = [Actor(spec, RandomPolicy(RandomSettings(), spec)) for spec in specs]
    first = Runner(build_world(config.world, 1), actors, config.seed).play(1, 0)
    for group in groups:
        if isinstance(group.learner, HasProbe):
            try:
                group.learner.probe(first.experiences[group.name])
            except ValueError as error:
                raise ConfigError(f"groups.{group.name}.learner: {error}") from None
