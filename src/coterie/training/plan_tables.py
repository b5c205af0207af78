"""Plan tables of teachers: found by play of an experiment, so that others replay them without a model."""

from __future__ import annotations

from coterie.advice.policy import AdvisorPolicy
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.group import Actor, Advisor
from coterie.core.lookup import Trust
from coterie.lm.plans import PlanTable
from coterie.training import build
from coterie.training.evaluate import evaluate

EXPLORATION = (0.0, 0.3, 1.0)  # probabilities of random actions in the episodes that look for text states


def find_plans(
    experiment: str,
    overrides: list[str] | None = None,
    episodes: int = 100,
    group: str | None = None,
    trust: Trust = "signed",
) -> PlanTable:
    """Play an experiment's teacher, with more and less random actions, and return the plans of what it met."""
    config = schema.load(experiment, overrides, trust)
    world = build.build_evaluation_world(config.world, episodes)
    groups = build.build_groups(config, world)
    taught: dict[str, Advisor] = {}
    for each in groups:
        if each.actor.advisor is not None and isinstance(each.actor.advisor.findings(), PlanTable):
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
    table: PlanTable = advisor.findings()
    if not table.plans:
        raise ConfigError("the teacher has no plans to write: its planner is the world (plans=oracle)")
    return table


def _explorer(actor: Actor, exploration: float) -> Actor:
    """The actor, played by its teacher if it has one."""
    if actor.advisor is None:
        return actor
    policy = AdvisorPolicy(actor.advisor, exploration)
    return Actor(actor.group_spec, policy, actor.members, shield=actor.shield)
