"""Judges of two episodes: the world's own return, a language model, or a person at the terminal.

A model reads each pair in both orders. Half the difference of its log odds rates the episodes: a bias towards the first
or second position cancels out (Zheng et al. 2023, section 3.4, swap and average verdicts likewise).
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.lookup import suggest
from coterie.core.types import CoterieError
from coterie.lm import prompts
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.lm.ask.choice import ChoiceScorer
from coterie.lm.ask.interface import BudgetDenied, Missing, NotRecorded, RetriesExhausted
from coterie.lm.ask.loading import LMSettings, check_model
from coterie.studies.rate.episodes import Episode, ViewOptions
from coterie.studies.rate.rate import Judge, StopRating
from coterie.video import captions

WIDTH = 78
GAP = "   |   "
CLEAR = "\x1b[H\x1b[2J"
ANSWERS = "[a] A  [b] B  [t] tie  [s] skip  [r] again  [q] stop"
HELP = """\
  a  A is better        t  a tie          r  show both again
  b  B is better        s  skip it        q  stop; the same command continues"""
TIE_MARGIN = 0.02  # a model's probability this close to 1/2 is a tie
KEYS = {"a": 1.0, "b": 0.0, "t": 0.5, "s": None}
USED_OPTIONS = {"return": (), "person": ("instruction", "moments")}  # options that a judge uses; models: all


@dataclass(frozen=True)
class ModelOptions:
    """Settings of a language model as a judge: its template, its budget and its cache."""

    cache: str | None = None  # SQLite file of answers
    calls: int | None = None  # at most
    template: str = "rating"  # a file, or the name of a built-in template
    moments: int = 6  # most moments described per episode


def check_options(judge: str, options: Mapping[str, object]) -> None:
    """Refuse options that are set but have no effect with this judge."""
    for name, value in options.items():
        if value is not None and name not in USED_OPTIONS.get(judge, options):
            raise CoterieError(f"--{name} has no effect with --judge {judge}; leave it out, or name another judge")


def make(name: str, instruction: str, options: ModelOptions) -> Judge:
    """Make a judge by name: return, person, or a language model as the setting `lm` names it."""
    if name == "return":
        return ReturnJudge()
    if name == "person":
        return PersonJudge(instruction, options.moments)
    try:
        check_model(LMSettings(name))
    except (Missing, ValueError) as error:
        raise CoterieError(f"--judge {name}: {error}{suggest(name, [*USED_OPTIONS, 'embedded'])}") from None
    return ModelJudge(name, instruction, options)


class ReturnJudge:
    """Prefers the greater return in the world's own rewards: a reference for the other judges."""

    view_options = ViewOptions()

    def compare(self, first: Episode, second: Episode) -> float:
        return 0.5 if first.returns == second.returns else float(first.returns > second.returns)


class ModelJudge:
    """A language model that reads descriptions of both episodes in both orders, without returns."""

    def __init__(self, name: str, instruction: str, options: ModelOptions) -> None:
        self.name, self.instruction = name, instruction
        self.view_options = ViewOptions(words=True, moments=options.moments)
        cache = None if options.cache is None else CacheSettings(options.cache)
        budget = None if options.calls is None else BudgetSettings(calls=options.calls)
        template = prompts.read(options.template, "auto", options.template, ("A", "B"))
        digest = hashlib.sha256(f"{template.head}\0{template.question}".encode()).hexdigest()[:12]
        self.template = f"{Path(options.template).name} {digest}"  # two files of one name may differ in their text
        self.scorer = ChoiceScorer(LMSettings(name, cache=cache, budget=budget), template, ("A", "B"))

    def probability(self, first: Episode, second: Episode) -> float:
        """The probability that the first is better.

        Calls the model itself, since `ChoiceScorer` turns every failure into an abstention and failures differ here.
        """
        questions = [self.question(first, second), self.question(second, first)]
        texts = [self.scorer.template.prompt(text) for text in questions]
        scores = np.array(self.scorer.lm.score(texts, [[" A", " B"]] * 2, self.scorer.normalize))
        difference = (scores[0, 0] - scores[0, 1]) - (scores[1, 0] - scores[1, 1])
        return float(1 / (1 + np.exp(-difference / 2)))

    def question(self, first: Episode, second: Episode) -> str:
        return f"{self.instruction}\nA: {' '.join(first.description)}\nB: {' '.join(second.description)}"

    def compare(self, first: Episode, second: Episode) -> float | None:
        try:
            probability = self.probability(first, second)
        except (BudgetDenied, NotRecorded):
            raise StopRating from None  # the pair stays open for a greater budget
        except RetriesExhausted as error:
            raise CoterieError(f"'{self.name}' does not answer; earlier ratings are kept: {error}") from None
        if np.isnan(probability):
            raise CoterieError(f"'{self.name}' gives neither answer a probability; check the prompt of --template")
        return 0.5 if abs(probability - 0.5) < TIE_MARGIN else float(probability > 0.5)


class PersonJudge:
    """A person at the terminal, who sees frames where the world can be rendered, else words."""

    def __init__(
        self, instruction: str, moments: int, ask: Callable[[str], str] = input, say: Callable[[str], None] = print
    ) -> None:
        self.view_options = ViewOptions(words=True, frames=True, moments=moments)
        self.instruction, self.ask, self.say = instruction, ask, say
        self.number, self.total = 0, 0  # of the pair, and of all pairs

    def begin(self, done: int, total: int) -> None:
        """Say what is asked and how to answer, before the first pair."""
        self.number, self.total = done, total
        earlier = f" {done} are rated already." if done else ""
        self.say(f"{total - done} pairs of episodes, A and B.{earlier} Answer with a key:")
        self.say(HELP)

    def compare(self, first: Episode, second: Episode) -> float | None:
        self.number += 1
        self.show(first, second)
        while True:
            try:
                word = self.ask(f"\n{self.place}: {ANSWERS} > ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                raise StopRating from None
            if word[:1] in KEYS:
                return KEYS[word[0]]
            if word[:1] == "q":
                raise StopRating
            if word[:1] == "r":
                self.show(first, second)
            else:
                self.say(HELP)

    @property
    def place(self) -> str:
        """The number of this pair: `pair 1 of 20`."""
        return f"pair {self.number}" + (f" of {self.total}" if self.total else "")

    def show(self, first: Episode, second: Episode) -> None:
        """Print both episodes side by side, step by step; where they are too wide, one below the other."""
        question = textwrap.fill(f"{self.place}: {self.instruction}", WIDTH)
        live = bool(first.frames and second.frames) and sys.stdout.isatty()
        if not live:  # where every frame clears the screen, the question is above each
            self.say(f"\n{question}")
        if first.frames and second.frames:
            last = max(len(first.frames), len(second.frames)) - 1
            shown = range(last + 1) if live else sorted({0, last // 2, last})
            for step in shown:
                scene = self._both(first, second, step)
                self.say(f"{CLEAR}{question}\n\n{scene}" if live else f"\n{scene}")
                if live:
                    time.sleep(max(0.05, min(0.25, 8 / (last + 1))))
        for name, episode in (("A", first), ("B", second)):
            if not episode.frames and not episode.description:
                raise CoterieError("this world can neither be rendered nor described in words; set --judge return")
            if episode.description:
                self.say("")
            for line in episode.description:
                self.say(textwrap.fill(line, WIDTH, initial_indent=f"{name}  ", subsequent_indent="   "))

    def _both(self, first: Episode, second: Episode, step: int) -> str:
        """Both sides at a step, in colour where the terminal has it, and what their signs mean."""
        scene = "\n".join(side_by_side(self._scene(first, "A", step), self._scene(second, "B", step)))
        legend = captions.legend_lines(first.legend, (), captions.in_colour(), WIDTH)
        scene = captions.shown(scene, first.legend)
        return "\n".join([scene, "", *legend] if legend else [scene])

    def _scene(self, episode: Episode, name: str, step: int) -> list[str]:
        """One side: its letter, the step, and the frame; an episode that is over keeps its last frame."""
        last = len(episode.frames) - 1
        over = " (over)" if step >= last else ""
        head = f"{name}: step {min(step, last)} of {last}{over}"
        return [head, *captions.without_step(episode.frames[min(step, last)], min(step, last)).splitlines()]


def side_by_side(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Two texts next to each other, in 80 columns; where they do not fit, one below the other."""
    wide = max(map(len, left))
    if wide + len(GAP) + max(map(len, right)) > WIDTH:
        return [*left, "", *right]
    return [f"{one:{wide}}{GAP}{other}".rstrip() for one, other in itertools.zip_longest(left, right, fillvalue="")]
