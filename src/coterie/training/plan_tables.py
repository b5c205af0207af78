"""Plan tables of teachers: found by play, and written so that experiments replay them without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from coterie.advice.policy import AdvisorPolicy
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.group import Actor, Group
from coterie.lm.plans import PlanTable
from coterie.training import build
from coterie.training.evaluate import evaluate

EXPLORATION = (0.0, 0.3, 1.0)  # probabilities of random actions in the episodes that look for text states


@runtime_checkable
class HasPlans(Protocol):
    """An advisor whose plans can be written as a table."""

    def plan_table(self) -> PlanTable:
        """The plans of all text states met so far; empty where the world is the planner."""
        ...


def plans_of(actors: Sequence[Actor]) -> dict[str, PlanTable]:
    """The plans of the actors' teachers, by group; groups without a teacher are left out."""
    found: dict[str, PlanTable] = {}
    for actor in actors:
        if isinstance(actor.advisor, HasPlans):
            found[actor.group_spec.group] = actor.advisor.plan_table()
    return found


def write_plans(
    groups: Sequence[Group], folder: Path, elsewhere: Mapping[str, Sequence[PlanTable]] | None = None
) -> list[Path]:
    """Write the plans of every group's teacher into a folder, `plans-GROUP.json`; groups without plans are left out.

    `elsewhere` are plans of the same groups in other processes.
    """
    written: list[Path] = []
    for name, table in plans_of([group.actor for group in groups]).items():
        more = (elsewhere or {}).get(name, ())
        plans = dict(item for part in (*more, table) for item in part.plans.items())
        if plans:
            written.append(folder / f"plans-{name}.json")
            replace(table, plans=plans).write(written[-1])
    return written


def find_plans(
    experiment: str, overrides: list[str] | None = None, episodes: int = 100, group: str | None = None
) -> PlanTable:
    """Play an experiment's teacher, with more and less random actions, and return the plans of what it met."""
    config = schema.load(experiment, overrides)
    world = build.build_evaluation_world(config.world, episodes)
    groups = build.build_groups(config, world)
    taught: dict[str, HasPlans] = {}
    for each in groups:
        if isinstance(each.actor.advisor, HasPlans):
            taught[each.name] = each.actor.advisor
    if group not in taught and (group is not None or len(taught) != 1):
        if not taught:
            raise ConfigError(f"'{config.experiment}' has no group with the advisor 'teacher', whose plans are written")
        wanted = "name one of the groups" if group is None else f"no teacher of '{group}'; there are those of"
        raise ConfigError(f"--group: {wanted} {', '.join(taught)}")
    advisor = taught[group or next(iter(taught))]
    for exploration in EXPLORATION:
        actors = [_explorer(g.actor, exploration) for g in groups]
        evaluate(world, actors, episodes, config.seed, greedy=False)
    table = advisor.plan_table()
    if not table.plans:
        raise ConfigError("the teacher has no plans to write: its planner is the world (plans=oracle)")
    return table


def _explorer(actor: Actor, exploration: float) -> Actor:
    """The actor, played by its teacher if it has one."""
    if actor.advisor is None:
        return actor
    policy = AdvisorPolicy(actor.advisor, exploration)
    return Actor(actor.group_spec, policy, actor.members, shield=actor.shield)
