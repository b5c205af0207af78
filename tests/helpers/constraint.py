"""Scripted judges of rules, and action shields for grid worlds."""

import re

import numpy as np

from coterie.advice.constraints import ConstraintSettings, LanguageShield
from coterie.core.types import View
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.scripted import Scripted
from helpers.language import race, view_of
from helpers.small_worlds import spec_in

ASKED: list[tuple[str, str]] = []  # every prompt's last lines with the choice that was scored
CASE = re.compile(r"Rule: ([^.]*)\. (.*) Move: ([^.]*)\.\nBreaks the rule:$")


def by_words(prompt, choice):
    """Scores actions that a rule names as forbidden by it; 'anything' names all."""
    rule = prompt.splitlines()[-2]
    ASKED.append((rule, choice))
    return -1.0 if re.search(rf"\b{choice.strip()}\b", rule) or "anything" in rule else -9.0


def by_question(prompt, choice):
    """Says yes, surely or not quite ('perhaps'), if the rule names the move."""
    rule, state, move = CASE.search(prompt).groups()
    ASKED.append((state, move))
    yes = (1.0 if "perhaps" in rule else 5.0) if move in rule else -5.0
    return (yes if choice == " yes" else 0.0) - 10.0


CHANNEL = Scripted(lambda prompt, random: "", by_words, "by words")
DIRECT = Scripted(lambda prompt, random: "", by_question, "by question")


def make_shield(world=None, *rules, model="CHANNEL", around=None, **settings):
    """An action shield for all agents of a grid world; without other rules it forbids moves to the left."""
    world = world or race(num_agents=2)
    lm = LMSettings(f"helpers.constraint:{model}", **around or {})
    asked = ConstraintSettings(rules or ("never move left",), lm=lm, **settings)
    return LanguageShield(asked, spec_in(world))


def seen(world, seed=0, mask=None) -> View:
    view = view_of(world, spec_in(world), seed)
    return view if mask is None else View(**{**vars(view), "mask": np.broadcast_to(mask, (*view.acting.shape, 5))})
