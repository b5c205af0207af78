"""Who compares two episodes: the world's own return, a language model, or a person at the terminal.

A model reads each pair in both orders. Half the difference of its log odds is what it holds of the episodes: what it
holds of the place, first or second, cancels out (Zheng et al. 2023, section 3.4, swap and average verdicts likewise).
"""

from __future__ import annotations

import hashlib
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.lookup import suggest
from coterie.core.types import CoterieError
from coterie.lm import prompts
from coterie.lm.choice import ChoiceScorer
from coterie.lm.interface import BudgetDenied, Missing, NotRecorded, RetriesExhausted
from coterie.lm.loading import LMSettings, check_model
from coterie.lm.wrappers.budget import BudgetSettings
from coterie.lm.wrappers.cache import CacheSettings
from coterie.studies.rate.episodes import Episode, ViewOptions
from coterie.studies.rate.rate import Judge, StopRating

WIDTH = 78
CLOSE = 0.02  # nearer to 1/2 than this, a model's probability is a tie
KEYS = {"a": 1.0, "b": 0.0, "t": 0.5, "s": None}
HEEDED = {"return": (), "person": ("instruction", "moments")}  # options that a judge makes use of; models: all


@dataclass(frozen=True)
class ModelOptions:
    """What a language model may read and spend."""

    cache: str | None = None  # SQLite file of answers
    calls: int | None = None  # at most
    template: str = "rating"  # a file, or one of ours by name
    moments: int = 6  # told of an episode at most


def check_heeded(judge: str, options: Mapping[str, object]) -> None:
    """Refuse options that were given, but would change nothing with this judge."""
    for name, value in options.items():
        if value is not None and name not in HEEDED.get(judge, options):
            raise CoterieError(f"--{name} does nothing with --judge {judge}; leave it out, or name another judge")


def make(name: str, instruction: str, options: ModelOptions) -> Judge:
    """A judge by name: return, person, or a language model as `lm` names them."""
    if name == "return":
        return ByReturn()
    if name == "person":
        return Person(instruction, options.moments)
    try:
        check_model(LMSettings(name))
    except (Missing, ValueError) as error:
        raise CoterieError(f"--judge {name}: {error}{suggest(name, [*HEEDED, 'embedded'])}") from None
    return Model(name, instruction, options)


class ByReturn:
    """The greater return in the world's own rewards: a check that the rest ranks right."""

    looks = ViewOptions()

    def compare(self, first: Episode, second: Episode) -> float:
        return 0.5 if first.returns == second.returns else float(first.returns > second.returns)


class Model:
    """A language model that is told both episodes in words, in both orders; returns are not among them."""

    def __init__(self, name: str, instruction: str, options: ModelOptions) -> None:
        self.name, self.instruction = name, instruction
        self.looks = ViewOptions(words=True, moments=options.moments)
        cache = None if options.cache is None else CacheSettings(options.cache)
        budget = None if options.calls is None else BudgetSettings(calls=options.calls)
        template = prompts.read(options.template, "auto", options.template, ("A", "B"))
        text = hashlib.sha256(f"{template.head}\0{template.question}".encode()).hexdigest()[:12]
        self.template = f"{Path(options.template).name} {text}"  # a file of the same name may say another thing
        self.scorer = ChoiceScorer(LMSettings(name, cache=cache, budget=budget), template, ("A", "B"))

    def chance(self, first: Episode, second: Episode) -> float:
        """How probably the first is better; asked of the model itself, since its reasons for silence differ."""
        told = [self.question(first, second), self.question(second, first)]
        texts = [self.scorer.template.prompt(text) for text in told]
        scores = np.array(self.scorer.lm.score(texts, [[" A", " B"]] * 2, self.scorer.normalize))
        apart = (scores[0, 0] - scores[0, 1]) - (scores[1, 0] - scores[1, 1])
        return float(1 / (1 + np.exp(-apart / 2)))

    def question(self, first: Episode, second: Episode) -> str:
        return f"{self.instruction}\nA: {' '.join(first.told)}\nB: {' '.join(second.told)}"

    def compare(self, first: Episode, second: Episode) -> float | None:
        try:
            chance = self.chance(first, second)
        except (BudgetDenied, NotRecorded):
            raise StopRating from None  # the pair stays open for a greater budget
        except RetriesExhausted as error:
            raise CoterieError(f"'{self.name}' does not answer; what it said before is kept: {error}") from None
        if np.isnan(chance):
            raise CoterieError(f"'{self.name}' gives neither answer a probability; see what --template asks")
        return 0.5 if abs(chance - 0.5) < CLOSE else float(chance > 0.5)


class Person:
    """Somebody at the terminal, who is shown pictures where the world can be drawn, else words."""

    def __init__(
        self, instruction: str, moments: int, ask: Callable[[str], str] = input, say: Callable[[str], None] = print
    ) -> None:
        self.looks = ViewOptions(words=True, frames=True, moments=moments)
        self.instruction, self.ask, self.say, self.number = instruction, ask, say, 0

    def compare(self, first: Episode, second: Episode) -> float | None:
        self.number += 1
        self.show(first, second)
        while True:
            try:
                word = self.ask("a, b, tie, skip, replay or quit: ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                raise StopRating from None
            if word[:1] in KEYS:
                return KEYS[word[0]]
            if word[:1] == "q":
                raise StopRating
            if word[:1] == "r":
                self.show(first, second)

    def show(self, first: Episode, second: Episode) -> None:
        """Both episodes, one after the other."""
        self.say(f"\npair {self.number}: {textwrap.fill(self.instruction, WIDTH)}")
        for name, episode in (("A", first), ("B", second)):
            if episode.frames and sys.stdout.isatty():
                for step, frame in enumerate(episode.frames):
                    self.say(f"\x1b[H\x1b[2Jepisode {name}, step {step} of {len(episode.frames) - 1}\n{frame}")
                    time.sleep(max(0.05, min(0.25, 8 / len(episode.frames))))
            elif episode.frames:
                for step in sorted({0, len(episode.frames) // 2, len(episode.frames) - 1}):
                    self.say(f"episode {name}, step {step} of {len(episode.frames) - 1}\n{episode.frames[step]}")
            elif not episode.told:
                raise CoterieError("this world can neither be drawn nor told in words; set --judge return")
            for line in episode.told:
                self.say(textwrap.fill(line, WIDTH, initial_indent=f"{name}  ", subsequent_indent="   "))
