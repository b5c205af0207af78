"""Builds worlds, groups and runners from a config, and checks that their capabilities fit together."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.config import registry
from coterie.config.schema import Config, ConfigError, GroupConfig, Part, SeatedRun
from coterie.core import lookup
from coterie.core.game import NoGame
from coterie.core.group import (
    ActionShield,
    Actor,
    Advisor,
    Group,
    GroupSpec,
    Learner,
    Policy,
    Preference,
    Risk,
    check_members,
)
from coterie.core.types import CoterieError, UnknownName
from coterie.core.validation import allocating
from coterie.core.world import World, check_methods, check_state, state_size_of
from coterie.nn.packing import joined_size
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.training.evaluate import evaluation_envs
from coterie.training.language_models import refuse_split_budgets, refuse_unknown_models
from coterie.training.runner import Runner

SCOPE_NEEDS = {"interim": "whose critic predicts distributions", "episodic": "that values whole episodes"}


def build_world(part: Part, num_envs: int) -> World:
    """Build a config's world with `num_envs` environments."""
    try:
        world: World = lookup.look_up(registry.WORLDS, part.name)(part.settings, num_envs)
        check_methods(world)
    except UnknownName as error:
        raise ConfigError(f"world.name: {error}") from None
    except ValueError as error:
        raise ConfigError(f"world: {error}") from None
    except MemoryError as error:
        raise ConfigError(f"world: {num_envs} environments do not fit into memory: {error}") from None
    return world


def most_envs(actors: Sequence[Actor], wanted: int) -> int:
    """The number of environments that all actors can play at once, at most `wanted`."""
    return min([wanted, *(getattr(actor.policy, "max_envs", wanted) for actor in actors)])


def build_evaluation_world(part: Part, episodes: int) -> World:
    """Build a config's world to play a number of episodes that nobody learns from: with held-out instances."""
    return build_world(evaluation_part(part), evaluation_envs(part, episodes))


def build_validation_world(part: Part, episodes: int) -> World | None:
    """Build a config's world for evaluations in training; None where it is that of other evaluations."""
    settings = getattr(part.settings, "for_validation", lambda: None)()
    return None if settings is None else build_world(Part(part.name, settings), evaluation_envs(part, episodes))


def evaluation_part(part: Part) -> Part:
    """A config's world with its settings for evaluations, where it has such."""
    return Part(part.name, getattr(part.settings, "for_evaluation", lambda: part.settings)())


def build_render_world(part: Part) -> World:
    """Build one environment for rendering; external environments render only if they are created for it."""
    settings = evaluation_part(part).settings
    if any(spec.name == "render" for spec in dataclasses.fields(settings)):
        settings = dataclasses.replace(settings, render=True)
    return build_world(Part(part.name, settings), 1)


def build_group_specs(config: Config, world: World) -> dict[str, GroupSpec]:
    """Assign each agent to exactly one group; all agents of a group have one agent type."""
    group_of: dict[str, str] = {}  # agent -> group
    group_specs = {}
    every = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    for name, group in config.groups.items():
        members = [agent for agent in every if any(fnmatch.fnmatchcase(agent, p) for p in group.agents)]
        path = f"groups.{name}.agents"
        if not members:
            raise ConfigError(f"{path}: no agent is called {' or '.join(group.agents)}; there are {', '.join(every)}")
        for agent in members:
            if agent in group_of:
                raise ConfigError(f"{path}: '{agent}' is already in group '{group_of[agent]}'")
            group_of[agent] = name
        agent_types = [
            agent_type for agent_type, spaces in world.agent_types.items() if any(a in spaces.agents for a in members)
        ]
        if len(agent_types) > 1:
            raise ConfigError(f"{path}: agents of different types ({', '.join(agent_types)}) cannot share a group")
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
    missing = [agent for agent in every if agent not in group_of]
    if missing:
        raise ConfigError(f"groups: no group contains {', '.join(missing)}; add them to the agents of a group")
    table = tuple(group_spec.info for group_spec in group_specs.values())
    return {name: dataclasses.replace(group_spec, table=table) for name, group_spec in group_specs.items()}


class ActorParts(NamedTuple):
    """The parts of an actor besides its policy."""

    advisor: Advisor | None = None
    shield: ActionShield | None = None

    def on(self, actor: Actor) -> Actor:
        """The actor with these parts; where there is none here, its own one stays."""
        return dataclasses.replace(
            actor,
            advisor=actor.advisor if self.advisor is None else self.advisor,
            shield=actor.shield if self.shield is None else self.shield,
        )


def build_actor(group: GroupConfig, group_spec: GroupSpec, world: World) -> Actor:
    """Build a group's policy, advisor and shield."""
    group_spec, parts = build_advisor_and_shield(group, group_spec)
    if group_spec.advice is not None:
        check_advice(group, group_spec.group, group_spec.advice.use.mode)
    return parts.on(build_group_actor(group.policy, group_spec, world, group.learner is not None))


def build_advisor_and_shield(group: GroupConfig, group_spec: GroupSpec) -> tuple[GroupSpec, ActorParts]:
    """Return the group spec, with the use of advice if there is an advisor, and both parts."""

    def made(key: str, table: dict[str, str], chosen: Part | None, protocol: type) -> Any:
        if chosen is None:
            return None
        try:
            cls = lookup.look_up(table, chosen.name)
            others = [advising_actor(chosen.settings, group_spec)] if getattr(cls, "takes_actor", False) else []
            part = cls(chosen.settings, group_spec, *others)
            check_members(part, protocol)
        except ValueError as error:
            raise ConfigError(f"groups.{group_spec.group}.{key}: {error}") from None
        return part

    parts = ActorParts(
        made("advisor", registry.ADVISORS, group.advisor, Advisor),
        made("constraints", registry.SHIELDS, group.constraints, ActionShield),
    )
    if parts.advisor is None:
        return group_spec, parts
    return dataclasses.replace(group_spec, advice=parts.advisor.advice_use), parts


def advising_actor(settings: Any, group_spec: GroupSpec) -> Actor:
    """Seat the policy that an advisor asks; its class sets the class attribute `takes_actor`."""
    from coterie.training.players import seated_policy

    assert group_spec.world is not None
    try:
        chosen = seated_policy(settings.policy, settings.checkpoint)
    except ConfigError:
        raise
    except CoterieError as error:
        raise ConfigError(f"groups.{group_spec.group}.advisor.policy: {error}") from None
    return build_group_actor(chosen, dataclasses.replace(group_spec, learns=False), group_spec.world, learns=False)


def check_advice(group: GroupConfig, name: str, mode: str) -> None:
    """Raise if the group's learner does not support the advice mode."""
    learner = None if group.learner is None else group.learner.name
    able = [other for other in registry.LEARNERS if mode in advice_modes(other)]
    if learner is None or mode not in advice_modes(learner):
        reason = "the group has no learner" if learner is None else f"'{learner}' does not"
        cure = " or ".join(f"groups.{name}.learner.name={other}" for other in able)
        raise ConfigError(
            f"groups.{name}.advisor: use.mode={mode} needs a learner that supports it; {reason}; set {cure}"
        )


def advice_modes(learner: str) -> tuple[str, ...]:
    """Return the advice modes that a learner supports."""
    found = lookup.look_up(registry.LEARNERS, learner)
    modes: tuple[str, ...] = getattr(found, "advice_modes", ())  # a class attribute
    return modes


def build_group_actor(chosen: Part | SeatedRun, group_spec: GroupSpec, world: World, learns: bool) -> Actor:
    """Build a group's policy: a new one, or one of an earlier run with its weights."""
    if isinstance(chosen, SeatedRun):
        return build_run_actor(chosen, group_spec, world, learns)
    return Actor(group_spec, build_policy(chosen, group_spec, world))


def build_policy(chosen: Part, group_spec: GroupSpec, world: World) -> Policy:
    """Build a new policy by name."""
    path = f"groups.{group_spec.group}.policy"
    made = lookup.look_up(registry.POLICIES, chosen.name)
    needs = getattr(made, "needs", None)  # a class attribute: the capability that the world must have
    try:
        if getattr(needs, "_is_protocol", False) and not getattr(needs, "_is_runtime_protocol", False):
            raise ValueError(f"decorate {needs!r}, which '{chosen.name}' needs, with @typing.runtime_checkable")
        if needs is not None and not isinstance(world, needs):
            raise ConfigError(
                f"group '{group_spec.group}': policy '{chosen.name}' needs a world with the capability "
                f"{needs.__name__}; '{type(world).__name__}' does not have it"
            )
        with allocating():
            policy: Policy = made(chosen.settings, group_spec)
        check_members(policy, Policy)
    except (ValueError, MemoryError, NoGame) as error:
        raise ConfigError(f"{path}: {error}") from None
    return policy


def build_run_actor(chosen: SeatedRun, group_spec: GroupSpec, world: World, learns: bool) -> Actor:
    """Build the policy of an earlier run's group with its weights.

    If the earlier group had other agents (a shared network depends on their number), the policy is built for the
    earlier group, and each agent acts as the earlier agent of the same name, or else by position. A policy that
    continues to learn must fit this group.
    """
    from coterie.runs import run

    try:
        refuse_circle(chosen, group_spec)
        directory = run.Run.open(chosen.run)
        earlier = directory.config()
        name = source_group(chosen, group_spec, earlier)
        saved = directory.load_checkpoint(str(chosen.checkpoint))["policies"][name]
    except ConfigError:
        raise
    except CoterieError as error:
        path = f"groups.{group_spec.group}.policy"
        moved = "" if Path(chosen.run).exists() else f"; if the run has moved, set {path}.run"
        raise ConfigError(f"{path}: {error}{moved}") from None
    group_spec, parts = inherited_advisor_and_shield(earlier.groups[name], group_spec)
    origin = policy_of(earlier, name)
    try:
        policy = build_group_actor(origin, group_spec, world, learns).policy
        policy.load(saved)
        return Actor(group_spec, policy, None, *parts)
    except ValueError as error:
        earlier_world = build_world(earlier.world, 1)
        before = dataclasses.replace(build_group_specs(earlier, earlier_world)[name], advice=group_spec.advice)
        alike = (before.spaces.observation, before.spaces.action) == (
            group_spec.spaces.observation,
            group_spec.spaces.action,
        )
        if learns or not alike:
            raise ConfigError(f"groups.{group_spec.group}.policy: {error}") from None
    policy = build_group_actor(origin, before, earlier_world, learns).policy
    policy.load(saved)
    known = before.agents
    members = [known.index(a) if a in known else i % len(known) for i, a in enumerate(group_spec.agents)]
    return Actor(group_spec, policy, np.array(members), *parts)


def start_groups(config: Config, groups: Sequence[Group]) -> None:
    """Give the policies of groups with a `start` the weights of that run.

    A policy with `start_from` decides itself what it takes; others take the whole state, which must fit.
    """
    from coterie.runs import run

    for group in groups:
        chosen, path = config.groups[group.name].start, f"groups.{group.name}.start"
        if chosen is None:
            continue
        try:
            directory = run.Run.open(chosen.run)
            name = source_group(chosen, group.actor.group_spec, directory.config(), "start")
            saved = directory.load_checkpoint(str(chosen.checkpoint))["policies"][name]
            getattr(group.policy, "start_from", group.policy.load)(saved)
            getattr(group.learner, "policy_started", lambda: None)()
        except ConfigError:
            raise
        except (CoterieError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from None
        except KeyError as error:
            raise ConfigError(f"{path}: {chosen.run} has another kind of policy: no {error} in its state") from None


def inherited_advisor_and_shield(group: GroupConfig, group_spec: GroupSpec) -> tuple[GroupSpec, ActorParts]:
    """Return the parts of an earlier group that its policy keeps: the shield, and an advisor used in evaluation."""
    advised, parts = build_advisor_and_shield(group, group_spec)
    if parts.advisor is None or parts.advisor.in_evaluation:
        return advised, parts
    return group_spec, parts._replace(advisor=None)  # it advised only the learner


def refuse_circle(chosen: Part | SeatedRun, group_spec: GroupSpec) -> None:
    """Refuse a policy of an earlier run that comes from itself, run by run."""
    from coterie.runs import run

    seen: set[tuple[Path, str]] = set()
    while isinstance(chosen, SeatedRun):
        earlier = run.Run.open(chosen.run).config()
        place = (Path(chosen.run).resolve(), source_group(chosen, group_spec, earlier))
        if place in seen:
            raise ConfigError(
                f"groups.{group_spec.group}.policy: group '{place[1]}' of '{chosen.run}' plays with its own policy; "
                "name another run or group"
            )
        seen.add(place)
        chosen = policy_of(earlier, place[1])


def policy_of(earlier: Config, name: str) -> Part | SeatedRun:
    """Return the policy of an earlier run's group; where it comes from a still earlier one, by its own group's name."""
    from coterie.runs import run

    chosen = earlier.groups[name].policy
    if not isinstance(chosen, SeatedRun) or chosen.group is not None:
        return chosen
    return dataclasses.replace(chosen, group=name if name in run.Run.open(chosen.run).config().groups else None)


def source_group(
    chosen: SeatedRun, group_spec: GroupSpec, earlier: Config, setting: Literal["policy", "start"] = "policy"
) -> str:
    """Return the group of the earlier run that a config refers to in one of its settings."""
    name = chosen.group or (group_spec.group if group_spec.group in earlier.groups else None)
    path = f"groups.{group_spec.group}.{setting}.group"
    if name is None:
        if len(earlier.groups) > 1:
            raise ConfigError(f"{path}: {chosen.run} has the groups {', '.join(earlier.groups)}; name one")
        name = next(iter(earlier.groups))
    if name not in earlier.groups:
        raise ConfigError(f"{path}: {chosen.run} has no group '{name}'")
    return name


def build_groups(config: Config, world: World, learning: bool = True, training: bool = True) -> list[Group]:
    """Build all groups in the order of the config.

    `learning`: also build the learners. `training`: the groups act in training, in this or a child process.
    """
    groups = []
    if config.train.workers:
        refuse_split_budgets(config.groups)
    if learning:  # without learners, advisors may never be asked
        refuse_unknown_models(config.groups)
    for name, group_spec in build_group_specs(config, world).items():
        group = config.groups[name]
        learns = training and group.learner is not None
        actor = build_actor(group, dataclasses.replace(group_spec, learns=learns), world)
        if learning:
            check_capacity(config, actor)
        preference = build_preference(group, actor.group_spec) if learning and group.learner is not None else None
        learner = None if preference is None else build_learner(group, actor, preference)
        groups.append(Group(actor, learner, preference))
    return groups


def check_capacity(config: Config, actor: Actor) -> None:
    """Raise if the actor's policy cannot act in as many environments at once as training and its evaluations play."""
    train = config.train
    wanted = max(train.num_envs // train.shards, evaluation_envs(config.world, train.evaluate_episodes))
    most = most_envs([actor], wanted)
    if most < wanted:
        raise ConfigError(
            f"groups.{actor.group_spec.group}.policy: training plays {wanted} environments at once (train.num_envs / "
            f"train.shards, train.evaluate_episodes), and a {type(actor.policy).__name__} at most {most}; record "
            "episodes with 'coterie demonstrate --policy NAME' and learn from them with 'coterie clone'"
        )


def build_preference(group: GroupConfig, group_spec: GroupSpec) -> Preference:
    """Build a learning group's preference and check its scope."""
    assert group.learner is not None
    check_preference(group, group_spec)
    gamma = getattr(group.learner.settings, "gamma", 1.0)  # custom learners may have no discount
    try:
        preference: Preference = lookup.look_up(registry.PREFERENCES, group.preference.name)(
            group.preference.settings, group_spec, gamma
        )
        check_members(preference, Preference)
    except ValueError as error:
        raise ConfigError(f"groups.{group_spec.group}.preference: {error}") from None
    check_scope(group, preference, group_spec)
    return preference


def build_learner(group: GroupConfig, actor: Actor, preference: Preference) -> Learner:
    """Build a group's learner."""
    assert group.learner is not None
    group_spec, policy = actor.group_spec, actor.policy
    made = lookup.look_up(registry.LEARNERS, group.learner.name)
    wanted = getattr(made, "teaches", None)  # a class attribute: the policies that it trains
    if wanted is not None and not isinstance(policy, (wanted, *getattr(made, "also_teaches", ()))):
        raise ConfigError(
            f"group '{group_spec.group}': learner '{group.learner.name}' improves a {wanted.__name__}, not this "
            f"group's {type(policy).__name__}{_cure(group_spec, wanted)}; with groups.{group_spec.group}.learner=none "
            "it plays as it is"
        )
    if actor.shield is not None:
        try:
            preference = actor.shield.charge(preference)
        except ValueError as error:
            raise ConfigError(f"groups.{group_spec.group}.constraints: {error}") from None
    try:
        with allocating():
            learner: Learner = made(group.learner.settings, policy, group_spec, preference)
        check_members(learner, Learner)
    except (ValueError, MemoryError) as error:
        raise ConfigError(f"groups.{group_spec.group}.learner: {error}") from None
    return learner


def needs_play(config: Config) -> bool:
    """Whether training plays at all: some learner needs it, or nobody learns."""
    learners = [group.learner.name for group in config.groups.values() if group.learner is not None]
    wanted = [getattr(lookup.look_up(registry.LEARNERS, name), "needs_play", True) for name in learners]
    return not wanted or any(wanted)


def check_preference(group: GroupConfig, group_spec: GroupSpec) -> None:
    """Raise if the group's learner supports certain preferences alone, and not this one."""
    assert group.learner is not None
    path, learner, name = f"groups.{group_spec.group}.preference", group.learner.name, group.preference.name
    supported = getattr(lookup.look_up(registry.LEARNERS, learner), "preferences", None)  # a class attribute
    if supported is not None and not issubclass(lookup.look_up(registry.PREFERENCES, name), supported):
        able = " or ".join(lookup.name_of(registry.PREFERENCES, one) for one in supported)
        raise ConfigError(f"{path}: learner '{learner}' does not support '{name}'; set {path}={able}")


def check_scope(group: GroupConfig, preference: Preference, group_spec: GroupSpec) -> None:
    """Raise if the group's learner does not support the scope of the preference."""
    assert group.learner is not None
    path, learner, name = f"groups.{group_spec.group}", group.learner.name, group.preference.name
    scope = preference.scope
    if scope not in ("step", *SCOPE_NEEDS):
        raise ConfigError(
            f"{path}.preference: '{name}' has the scope '{scope}'; there are step, {', '.join(SCOPE_NEEDS)}"
        )
    if scope != "step" and not isinstance(preference, Risk):
        raise ConfigError(
            f"{path}.preference: '{name}' with scope {scope} must have risk_parameters, value and influence"
        )
    supported = scopes(learner)
    if scope not in supported:
        others = [f"{path}.preference.scope={other}" for other in supported if other != "step"]
        able = [f"{path}.learner.name={other}" for other in registry.LEARNERS if scope in scopes(other)]
        need = SCOPE_NEEDS.get(scope, "of rewards")
        raise ConfigError(
            f"{path}.preference.scope: '{name}' with scope {scope} needs a learner {need}; "
            f"'{learner}' supports {' and '.join(supported)}; set {' or '.join(others + able)}"
        )


def scopes(learner: str) -> tuple[str, ...]:
    """Return the preference scopes that a learner supports."""
    found = lookup.look_up(registry.LEARNERS, learner)
    supported: tuple[str, ...] = getattr(found, "scopes", ("step",))  # a class attribute
    return supported


def _cure(group_spec: GroupSpec, wanted: type[Any]) -> str:
    """Return the hint that names the required policy, if it is registered."""
    name = lookup.name_of(registry.POLICIES, wanted)
    return f"; set groups.{group_spec.group}.policy.name={name}" if name in registry.POLICIES else ""


def build_runner(config: Config, shard: int, groups: Sequence[Group]) -> Runner:
    """Build the runner of one shard of the config's world."""
    world = build_world(config.world, config.train.num_envs // config.train.shards)
    runner = Runner(world, [group.actor for group in groups], config.seed, shard, shards=config.train.shards)
    try:
        check_state(world)  # now, not at the first checkpoint
    except ValueError as error:
        raise ConfigError(f"world: {error}") from None
    return runner


def probe_learners(config: Config, groups: Sequence[Group]) -> None:
    """Give learners with a probe one step of random actions, so they can reject the world before training."""
    probes = {group.name: getattr(group.learner, "probe", None) for group in groups}
    if not any(probes.values()):
        return
    specs = [group.actor.group_spec for group in groups]
    actors = [Actor(spec, RandomPolicy(RandomSettings(), spec)) for spec in specs]
    first = Runner(build_world(config.world, 1), actors, config.seed).play(1, 0)
    for name, probe in probes.items():
        if probe is not None:
            try:
                probe(first.experiences[name])
            except (ValueError, MemoryError) as error:
                raise ConfigError(f"groups.{name}.learner: {error}") from None
