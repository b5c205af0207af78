"""From a config to objects: worlds, groups, tables and runners. Capabilities are checked here, once."""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Any

import numpy as np

from coterie.config import registry
from coterie.config.schema import Config, ConfigError, GroupConfig, Part, SeatedRun
from coterie.core import lookup
from coterie.core.group import Advised, Charging, Group, Place, Policy, Preference, Risk, Seat, Settled
from coterie.core.types import CoterieError, UnknownName
from coterie.core.world import Stateful, World
from coterie.nn.packing import joined_size
from coterie.training.language_models import refuse_split_budgets, refuse_unknown_models
from coterie.training.runner import Runner

SERVES = {"interim": "whose critic knows distributions", "episodic": "that judges whole episodes"}
NEEDS = {"Guided": "brings its own reference player", "Renderable": "can be looked at"}


def build_world(part: Part, copies: int) -> World:
    """The world of a config with that many copies."""
    try:
        world: World = lookup.look_up(registry.WORLDS, part.name)(part.settings, copies)
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


def build_places(config: Config, world: World) -> dict[str, Place]:
    """Who sits where: every agent in exactly one group, every group inside one kind."""
    seated: dict[str, str] = {}
    places = {}
    every = [agent for kind in world.kinds.values() for agent in kind.agents]
    for name, group in config.groups.items():
        members = [agent for agent in every if any(fnmatch.fnmatchcase(agent, p) for p in group.agents)]
        path = f"groups.{name}.agents"
        if not members:
            raise ConfigError(f"{path}: no agent is called {' or '.join(group.agents)}; there are {', '.join(every)}")
        for agent in members:
            if agent in seated:
                raise ConfigError(f"{path}: '{agent}' already sits in group '{seated[agent]}'")
            seated[agent] = name
        kinds = [kind for kind, spaces in world.kinds.items() if any(a in spaces.agents for a in members)]
        if len(kinds) > 1:
            raise ConfigError(f"{path}: agents of different kinds ({', '.join(kinds)}) cannot share a group")
        spaces = world.kinds[kinds[0]]
        columns = np.array([spaces.agents.index(agent) for agent in members])
        places[name] = Place(
            name,
            kinds[0],
            spaces,
            tuple(members),
            columns,
            group.parameters,
            config.seed,
            world.state_size if isinstance(world, Stateful) else joined_size(world.kinds),
            world.simultaneous,
            world=world,
        )
    missing = [agent for agent in every if agent not in seated]
    if missing:
        raise ConfigError(f"groups: nobody plays {', '.join(missing)}; put them into a group")
    table = tuple(place.party for place in places.values())
    return {name: dataclasses.replace(place, table=table) for name, place in places.items()}


def seat_group(group: GroupConfig, place: Place, world: World) -> Seat:
    """A group's policy in its place, and who sits beside it."""
    place, parts = build_company(group, place)
    if place.advice is not None:
        check_advice(group, place.group, place.advice.use.way)
    return dataclasses.replace(build_seat(group.policy, place, world, group.learner is not None), **parts)


def build_company(group: GroupConfig, place: Place) -> tuple[Place, dict[str, Any]]:
    """Who sits beside a group's policy, by their place in a `Seat`, and the place where advice is known of."""
    parts: dict[str, Any] = {}
    for name, key, table, chosen in (
        ("annotator", "advisor", registry.ADVISORS, group.advisor),
        ("guard", "constraints", registry.GUARDS, group.constraints),
    ):
        if chosen is not None:
            try:
                parts[name] = lookup.look_up(table, chosen.name)(chosen.settings, place)
            except ValueError as error:
                raise ConfigError(f"groups.{place.group}.{key}: {error}") from None
    advisor = parts.get("annotator")
    if isinstance(advisor, Advised):  # one's own annotator need not advise
        place = dataclasses.replace(place, advice=advisor.advice)
    return place, parts


def check_advice(group: GroupConfig, name: str, way: str) -> None:
    """Refuse an advisor whose advice the group's learner cannot follow."""
    learner = None if group.learner is None else group.learner.name
    able = [other for other in registry.LEARNERS if way in follows(other)]
    if learner is None or way not in follows(learner):
        who = "nobody learns here" if learner is None else f"'{learner}' does not follow it"
        cure = " or ".join(f"groups.{name}.learner.name={other}" for other in able)
        raise ConfigError(f"groups.{name}.advisor: advice used as {way} needs a learner; {who}; set {cure}")


def follows(learner: str) -> tuple[str, ...]:
    """The ways of using advice that a learner follows."""
    served: tuple[str, ...] = getattr(lookup.look_up(registry.LEARNERS, learner), "follows", ())  # a class attribute
    return served


def build_seat(chosen: Part | SeatedRun, place: Place, world: World, learns: bool) -> Seat:
    """A group's policy in its place; one seated from an earlier run comes with its weights."""
    if isinstance(chosen, SeatedRun):
        return seat_run(chosen, place, world, learns)
    return Seat(place, build_policy(chosen, place, world))


def build_policy(chosen: Part, place: Place, world: World) -> Policy:
    """A policy by name, without any weights of an earlier run."""
    path = f"groups.{place.group}.policy"
    made = lookup.look_up(registry.POLICIES, chosen.name)
    needs = getattr(made, "needs", None)  # a class attribute: the capability it asks of the world
    if needs is not None and not isinstance(world, needs):
        raise ConfigError(
            f"group '{place.group}': policy '{chosen.name}' needs a world that {NEEDS[needs.__name__]}; "
            f"'{type(world).__name__.lower()}' does not"
        )
    try:
        policy: Policy = made(chosen.settings, place)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return policy


def seat_run(seated: SeatedRun, place: Place, world: World, learns: bool) -> Seat:
    """A group of an earlier run in this place, with its weights.

    Where the group had other agents than this one (a shared network knows how many), it keeps its own build
    and plays as those of its agents that bear the same names, or as its first ones. One that goes on
    learning must fit as it is.
    """
    from coterie.training import run

    try:
        directory = run.Run.open(seated.run)
        earlier = directory.config()
        name = earlier_group(seated, place, earlier)
        saved = directory.load_checkpoint(seated.checkpoint)["policies"][name]
    except ConfigError:
        raise
    except CoterieError as error:
        raise ConfigError(f"groups.{place.group}.policy: {error}") from None
    place, company = company_of(earlier.groups[name], place)
    try:
        policy = build_seat(earlier.groups[name].policy, place, world, learns).policy
        policy.load(saved)
        return Seat(place, policy, **company)
    except ValueError as error:
        stage = build_world(earlier.world, 1)
        before = dataclasses.replace(build_places(earlier, stage)[name], advice=place.advice)
        alike = (before.spaces.observation, before.spaces.action) == (place.spaces.observation, place.spaces.action)
        if learns or not alike:
            raise ConfigError(f"groups.{place.group}.policy: {error}") from None
    policy = build_seat(earlier.groups[name].policy, before, stage, learns).policy
    policy.load(saved)
    own = before.agents
    members = [own.index(a) if a in own else i % len(own) for i, a in enumerate(place.agents)]
    return Seat(place, policy, np.array(members), **company)


def company_of(group: GroupConfig, place: Place) -> tuple[Place, dict[str, Any]]:
    """Who comes along with a group of an earlier run: its rules hold wherever it plays, hints it cannot do without."""
    told, company = build_company(group, place)
    annotator = company.get("annotator")
    if annotator is None or annotator.always:
        return told, company
    return place, {name: part for name, part in company.items() if name != "annotator"}  # it advised the learner


def earlier_group(seated: SeatedRun, place: Place, earlier: Config) -> str:
    """Which group of an earlier run is meant."""
    name = seated.group or (place.group if place.group in earlier.groups else None)
    path = f"groups.{place.group}.policy.group"
    if name is None:
        if len(earlier.groups) > 1:
            raise ConfigError(f"{path}: {seated.run} has the groups {', '.join(earlier.groups)}; name one")
        name = next(iter(earlier.groups))
    if name not in earlier.groups:
        raise ConfigError(f"{path}: {seated.run} has no group '{name}'")
    return name


def build_groups(config: Config, world: World, learning: bool = True) -> list[Group]:
    """All groups of the table in the config's order, with their learners unless they are only to play."""
    groups = []
    if config.train.workers:
        refuse_split_budgets(config.groups)
    if learning:  # who only plays may never ask an advisor that taught it
        refuse_unknown_models(config.groups)
    for name, place in build_places(config, world).items():
        group = config.groups[name]
        seat = seat_group(group, place, world)
        preference = build_preference(group, seat.place) if learning and group.learner is not None else None
        learner = None if preference is None else build_learner(group, seat, preference)
        groups.append(Group(seat, learner, preference))
    return groups


def build_preference(group: GroupConfig, place: Place) -> Preference:
    """How a group that learns values its rewards."""
    assert group.learner is not None
    preference: Preference = lookup.look_up(registry.PREFERENCES, group.preference.name)(group.preference.settings)
    check_way(group, preference, place)
    if isinstance(preference, Settled):
        try:
            preference.settle(place, getattr(group.learner.settings, "gamma", 1.0))  # one's own learner may have none
        except ValueError as error:
            raise ConfigError(f"groups.{place.group}.preference: {error}") from None
    return preference


def build_learner(group: GroupConfig, seat: Seat, preference: Preference) -> Any:
    """What improves the group."""
    assert group.learner is not None
    place, policy = seat.place, seat.policy
    made = lookup.look_up(registry.LEARNERS, group.learner.name)
    wanted = getattr(made, "teaches", None)  # a class attribute: the policies it can improve
    if wanted is not None and not isinstance(policy, (wanted, *getattr(made, "also_teaches", ()))):
        raise ConfigError(
            f"group '{place.group}': learner '{group.learner.name}' improves a {wanted.__name__}, "
            f"not a {type(policy).__name__}{_cure(place, wanted)}"
        )
    if isinstance(seat.guard, Charging):
        try:
            preference = seat.guard.charge(preference)
        except ValueError as error:
            raise ConfigError(f"groups.{place.group}.constraints: {error}") from None
    try:
        return made(group.learner.settings, policy, place, preference)
    except ValueError as error:
        raise ConfigError(f"groups.{place.group}.learner: {error}") from None


def check_way(group: GroupConfig, preference: Preference, place: Place) -> None:
    """Refuse a preference that the group's learner cannot follow."""
    assert group.learner is not None
    path, learner, liked = f"groups.{place.group}", group.learner.name, group.preference.name
    way = getattr(preference, "way", "step")  # one's own preferences need not say
    if way not in ("step", *SERVES):
        raise ConfigError(f"{path}.preference: '{liked}' has the way '{way}'; there are step, {', '.join(SERVES)}")
    if way != "step" and not isinstance(preference, Risk):
        raise ConfigError(f"{path}.preference: '{liked}' judged {way} must have judge, value and influence")
    served = ways(learner)
    if way not in served:
        others = [f"{path}.preference.way={other}" for other in served if other != "step"]
        able = [f"{path}.learner.name={name}" for name in registry.LEARNERS if way in ways(name)]
        raise ConfigError(
            f"{path}.preference.way: '{liked}' judged {way} needs a learner {SERVES.get(way, 'of rewards')}; "
            f"'{learner}' serves {' and '.join(served)}; set {' or '.join(others + able)}"
        )


def ways(learner: str) -> tuple[str, ...]:
    """The ways of valuing rewards that a learner serves."""
    served: tuple[str, ...] = getattr(
        lookup.look_up(registry.LEARNERS, learner), "ways", ("step",)
    )  # a class attribute
    return served


def _cure(place: Place, wanted: type[Any]) -> str:
    """How to name the policy that a learner wants, if it has a name here."""
    address = f"{wanted.__module__}:{wanted.__qualname__}"
    name = next((name for name, known in registry.POLICIES.items() if known == address), None)
    return "" if name is None else f"; set groups.{place.group}.policy.name={name}"


def build_runner(config: Config, shard: int, groups: list[Group]) -> Runner:
    """One shard of the config's world with everybody seated."""
    world = build_world(config.world, config.train.copies // config.train.shards)
    return Runner(world, [group.seat for group in groups], config.seed, shard, shards=config.train.shards)
