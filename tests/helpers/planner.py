"""Models that plan for door-key worlds by a rule."""

from coterie.lm.ask.interface import BudgetDenied
from coterie.lm.ask.scripted import Scripted

PLAN = ["explore", "go to key", "pick up", "go to door", "open", "go to goal", "explore", "go to goal", "done"]


def next_of_plan(prompt):
    """The right plan, word by word: what was said so far is at the prompt's end."""
    return PLAN[min(str(prompt).rpartition("Plan:")[2].count(","), len(PLAN) - 1)]


def next_skill(prompt):
    """The right skill for the last description."""
    seen = str(prompt).strip().split("\n")[-2]
    if "only explore" in seen:
        return "explore"
    if "is open" in seen:
        return "go to goal"
    if "hold a key" in seen:
        return "open" if "in front" in seen else "go to door"
    return "pick up" if "in front" in seen else "go to key"


def planner(rule, name):
    return Scripted(lambda prompt, random: rule(prompt), lambda p, choice: -10.0 * (choice.strip() != rule(p)), name)


WHOLE, STEP = planner(next_of_plan, "whole plans"), planner(next_skill, "steps")


def likes_waiting(prompt, choice):
    """The right skill before others, and `wait` before all, whatever is described."""
    return -10.0 * (choice.strip() != next_skill(prompt)) + 30.0 * (choice.strip() == "wait")


BIASED = Scripted(lambda prompt, random: "wait", likes_waiting, "likes to wait")


class Silent(Scripted):
    """Answers nothing."""

    def scores(self, prompts, choices):
        raise BudgetDenied("no more")


SILENT = Silent(lambda prompt, random: "", lambda prompt, choice: 0.0, "silent")
