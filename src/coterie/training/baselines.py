"""Baselines of a run: random play, guesses, the scripted expert, and advisors that learners are taught by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.advice.policy import AdvisorPolicy
from coterie.core.group import Actor, Group, GroupSpec, Policy
from coterie.core.types import CoterieError
from coterie.core.world import HasExpert, HasGuess, World
from coterie.policies.scripted import (
    ExpertPolicy,
    ExpertSettings,
    GuessPolicy,
    GuessSettings,
    RandomPolicy,
    RandomSettings,
)
from coterie.runs.extras import extra

Score = Callable[[Sequence[Actor], bool], dict[str, Any]]  # (actors, greedy) -> the result of their evaluation


def score_baselines(groups: Sequence[Group], world: World, score: Score) -> dict[str, Any]:
    """Scores of random play, guesses, the scripted expert and teachers in place of the learning groups, by name.

    Where no group learns they play in place of all groups.
    """
    nobody_learns = all(group.learner is None for group in groups)

    def play(make: Callable[[GroupSpec], Policy]) -> dict[str, Any]:
        return score(
            [
                Actor(g.actor.group_spec, make(g.actor.group_spec))
                if nobody_learns or g.learner is not None
                else g.actor
                for g in groups
            ],
            True,
        )

    found = {"random": play(lambda spec: RandomPolicy(RandomSettings(), spec))}
    if isinstance(world, HasGuess):
        with extra("score of guesses"):
            found["guess"] = play(lambda spec: GuessPolicy(GuessSettings(), spec))
    if isinstance(world, HasExpert):
        with extra("score of the expert"):
            found["expert"] = play(lambda spec: ExpertPolicy(ExpertSettings(), spec))
    if any(map(learns_from_others, groups)):
        with extra("score of the teacher"):
            teachers = [teacher_actor(g.actor) if learns_from_others(g) else g.actor for g in groups]
            found |= {"teacher": score(teachers, True), "teacher, drawn": score(teachers, False)}
    return found


def learns_from_others(group: Group) -> bool:
    """Whether a group learns from an advisor whose own score belongs into the summary."""
    advisor = group.actor.advisor
    return group.learner is not None and advisor is not None and advisor.scored_alone


def teacher_actor(actor: Actor) -> Actor:
    """The group's advisor in the place of its policy."""
    if actor.advisor is None:
        raise CoterieError(f"group '{actor.group_spec.group}' has no advisor")
    return Actor(actor.group_spec, AdvisorPolicy(actor.advisor), actor.members, shield=actor.shield)
