"""Scores the same words after many texts with a language model: memoised, calibrated, and tolerant of failures.

Language-model roles share this module. A text that the model may not read (the budget is spent, a server fails, the
cache only replays) has NaN scores, an abstention; the role decides how to act on it. A server that fails is skipped for
a while: every attempt takes seconds, and a policy asks at every step. Too many abstentions end the run, since its
numbers would be those of random choices.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np

from coterie.core.types import Array, State
from coterie.lm.ask import calibration as calibrate
from coterie.lm.ask.interface import (
    BudgetDenied,
    LMError,
    Normalize,
    NotRecorded,
    Rejected,
    RetriesExhausted,
    Sampling,
    TooManyAbstentions,
    Unavailable,
)
from coterie.lm.ask.loading import LMSettings, LoadedModel, backend_of, load_shared
from coterie.lm.prompts import PromptTemplate

log = logging.getLogger("coterie")
Question = TypeVar("Question")
Answer = TypeVar("Answer")
Calibration = Literal["none", "content_free", "batch"]
CONTENT_FREE = ("N/A", "...", "Nothing is known.")  # descriptions without content, for `calibration: content_free`
MAX_REMEMBERED = 200_000  # answers in memory; the model's own cache keeps all
MIN_QUESTIONS = 20  # the share of abstentions counts as if there were at least this many questions
WINDOW = 10_000  # questions over which the share of abstentions is taken, about: a server may fail late in a run
MAX_SKIPS = 64  # largest number of calls for which a failing server is skipped


@dataclass(frozen=True)
class Illegal:
    """A completion that names no legal choice."""

    text: str


class Backoff:
    """Skips a failing server: for one call after the first failure, then for two, four and so on."""

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.skips_left = 0  # coming calls to skip
        self.skipping = False  # the server is skipped in this call
        self.has_answered = False  # the server has answered at least once

    def should_skip(self) -> bool:
        """Start a call; return whether to skip the server in it."""
        self.skipping = self.skips_left > 0
        self.skips_left -= self.skipping
        return self.skipping

    def failed(self, error: RetriesExhausted | Unavailable) -> None:
        """Record a failure."""
        if not self.failures:
            log.warning("language model: %s; unanswered questions count as abstentions", error)
        self.skips_left, self.skipping = min(2**self.failures, MAX_SKIPS), True
        self.failures += 1

    def answered(self) -> None:
        """Record a success."""
        self.failures, self.has_answered = 0, True


class AnswerMemo(Generic[Question, Answer]):
    """Answers of a model to questions, each asked at most once; failures leave questions without an answer."""

    def __init__(self, ask_model: Callable[[Sequence[Question]], Iterable[Answer]]) -> None:
        self.ask_model, self.backoff = ask_model, Backoff()
        self.known: dict[Question, Answer] = {}
        self.refused: set[Question] = set()  # denied, rejected or not recorded; never asked again
        self.failure: LMError | None = None  # the latest failure of any kind

    def is_open(self, question: Question) -> bool:
        """Return whether asking may bring an answer: there is none yet, and the question was not refused."""
        return question not in self.known and question not in self.refused

    def ask(self, questions: Iterable[Question]) -> None:
        """Ask the model the questions whose answers are not known yet."""
        if len(self.known) > MAX_REMEMBERED:
            self.known.clear()
        new = [one for one in dict.fromkeys(questions) if self.is_open(one)]
        if new and not self.backoff.should_skip():
            rejections = self._ask(new)
            if rejections and not self.backoff.has_answered and self.refused.issuperset(new):
                raise Rejected(  # a wrong key or model name, not one bad question
                    f"the language model refuses all questions: {rejections[-1]}; of a server, check the address, "
                    "lm.http.model, and the key in the environment variable of lm.http.api_key_env"
                )
            for error in rejections:
                log.warning("language model: %s; the question counts as an abstention", error)

    def _ask(self, new: list[Question]) -> list[Rejected]:
        """Ask the questions together; where that is refused, ask each half, so that only refused ones stay open.

        Returns the rejections of single questions.
        """
        try:
            found = self.ask_model(new)
        except (BudgetDenied, NotRecorded, Rejected) as error:
            self.failure = error
            if len(new) == 1:
                self.refused.update(new)
                return [error] if isinstance(error, Rejected) else []
            rejections = self._ask(new[: len(new) // 2])
            if not self.backoff.skipping:  # the first half may have failed
                rejections += self._ask(new[len(new) // 2 :])
            return rejections
        except (RetriesExhausted, Unavailable) as error:
            self.failure = error
            self.backoff.failed(error)
        else:
            self.backoff.answered()
            self.known.update(zip(new, found, strict=True))
        return []


class AnswerCounter:
    """Counts the questions of a role and those without an answer; raises when the share of the latter is too large."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # `max_abstentions`
        self.questions = self.unanswered = 0
        self.recent_questions = self.recent_failures = 0.0  # of the latest questions, about WINDOW

    def add(self, questions: int, unanswered: int, failure: LMError | None) -> None:
        """Count questions; raise `TooManyAbstentions` if too many of the latest ones failed. `failure`: the latest."""
        self.questions += questions
        self.unanswered += unanswered
        if isinstance(failure, BudgetDenied):
            return  # a spent budget has its own setting, budget.at_limit
        self.recent_questions += questions
        self.recent_failures += unanswered
        if unanswered and self.recent_failures > self.limit * max(self.recent_questions, MIN_QUESTIONS):
            share = self.recent_failures / self.recent_questions
            what = "no answer came from the language model" if share == 1 else "the language model fails too often"
            raise TooManyAbstentions(
                f"{what}: {share:.0%} of the latest {self.recent_questions:.0f} questions have no answer, "
                f"lm.max_abstentions is {self.limit:g}; the latest failure: {failure}; see to the model, then start or "
                "resume the run, or raise the limit"
            )
        if self.recent_questions > WINDOW:
            self.recent_questions, self.recent_failures = self.recent_questions / 2, self.recent_failures / 2

    def metrics(self) -> dict[str, float]:
        return {"lm/questions": float(self.questions), "lm/unanswered": float(self.unanswered)}


class ChoiceScorer:
    """Scores the same words after many texts."""

    def __init__(
        self,
        lm: LMSettings,
        template: PromptTemplate,
        words: Sequence[str],
        samples: Sequence[str] = (),
        calibration: Calibration = "none",
        normalize: Normalize = "sum",
        sampling: tuple[int, Sampling] | None = None,
    ) -> None:
        """`samples` are descriptions of various states, for `calibration: batch`; without any it is `content_free`.

        With `sampling`, scores are frequencies among so many samples instead; such models have no calibration.
        """
        self.sampling = sampling
        self.settings, self.template, self.words, self.normalize = lm, template, tuple(words), normalize
        self.calibration: Calibration = "content_free" if calibration == "batch" and not samples else calibration
        self.samples: Sequence[str] = {"none": (), "content_free": CONTENT_FREE, "batch": samples}[self.calibration]
        self.answers: AnswerMemo[str, Array] = AnswerMemo(self._score)  # text -> scores [C]
        self.counter = AnswerCounter(lm.max_abstentions)
        if backend_of(lm) == "encoder":
            raise ValueError(f"lm: '{lm.name}' only embeds texts; name a model that can score words, such as embedded")
        calls = lm.budget.calls if lm.budget else None
        fresh = lm.cache is None or not Path(lm.cache.path).exists()
        if calls is not None and calls <= len(self.samples) and fresh:
            raise ValueError(
                f"lm.budget.calls: {calls} calls do not go beyond the {len(self.samples)} texts of the calibration; "
                "raise the limit, or set calibration=none"
            )

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The model, loaded on first use."""
        return load_shared(self.settings)

    @property
    def known(self) -> dict[str, Array]:
        """Uncalibrated scores `[C]` by text, as far as they are known."""
        return self.answers.known

    def log_probs(self, texts: Sequence[str]) -> Array:
        """Return calibrated log-probabilities of all words, `[R, C]`; rows without an answer are NaN."""
        scores = self._log_probs(texts)
        self.counter.add(len(texts), int(np.isnan(scores).any(axis=1).sum()), self.answers.failure)
        return scores

    def may_answer(self, texts: Sequence[str]) -> Array:
        """Return in which texts `[R]` without scores asking again may help: not where an answer was unparsable."""
        if any(self.answers.is_open(text) for text in self.samples):
            return np.ones(len(texts), bool)
        return np.array([self.answers.is_open(text) for text in texts], bool)

    def metrics(self) -> dict[str, float]:
        """Return the numbers of questions and of those without an answer, and the usage of the model once loaded."""
        if not self.counter.questions and "lm" not in vars(self):
            return {}
        return self.counter.metrics() | (self.lm.metrics() if "lm" in vars(self) else {})  # not loaded for its metrics

    def state(self) -> State:
        """Return the answers and, if the model is loaded, its usage and budget."""
        asked = "lm" in vars(self)  # a cached property; reading it would load the model
        return {
            "texts": list(self.known),
            "scores": np.array(list(self.known.values()), np.float64).reshape(len(self.known), len(self.words)),
            "refused": sorted(self.answers.refused),
            "limits": repr(self.settings.budget),
            "lm": self.lm.state() if asked else None,
        }

    def load(self, state: State) -> None:
        """Return to a saved state."""
        self.answers.known = dict(zip(state["texts"], state["scores"], strict=True))
        same = state["limits"] == repr(self.settings.budget)
        self.answers.refused = set(state["refused"]) if same else set()  # a larger budget may cover them
        if state["lm"] is not None:
            self.lm.load(state["lm"])

    def _log_probs(self, texts: Sequence[str]) -> Array:
        self.answers.ask([*self.samples, *texts])
        unknown = np.full(len(self.words), np.nan)
        scores = np.array([self.known.get(text, unknown) for text in texts]).reshape(-1, len(self.words))
        if self.calibration == "none":
            return scores
        prior = self._prior()
        if prior is None:
            return np.full_like(scores, np.nan)
        answered = ~np.isnan(scores).any(axis=1)
        scores[answered] = calibrate.calibrated(scores[answered], prior)
        return scores

    def _prior(self) -> Array | None:
        """Return the model's prior over words `[C]`, or None while the samples have no answers."""
        if any(text not in self.known for text in self.samples):
            return None
        scores = np.array([self.known[text] for text in self.samples])
        prior = calibrate.batch_prior if self.calibration == "batch" else calibrate.content_free_prior
        return prior(scores)

    def _score(self, texts: Sequence[str]) -> Array:
        """Ask the model for scores `[R, C]`."""
        if self.sampling is not None:
            return self._count_samples(texts, *self.sampling)
        words = [f" {word}" for word in self.words]
        return self.lm.score([self.template.prompt(text) for text in texts], [words] * len(texts), self.normalize)

    def _count_samples(self, texts: Sequence[str], count: int, sampling: Sampling) -> Array:
        """Return the logarithms of the words' frequencies among samples `[R, C]`; NaN where no sample names a word."""
        said = self.lm.complete([self.template.prompt(text) for text in texts], count, sampling)
        found = np.zeros((len(texts), len(self.words)))
        everything = np.ones(len(self.words), bool)
        for row, samples in zip(found, said, strict=True):
            for sample in samples:
                named = parse_choice(sample.text, self.words, everything)
                if not isinstance(named, Illegal):
                    row[named] += 1
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(found / found.sum(axis=1, keepdims=True))


def parse_choice(text: str, choices: Sequence[str], legal: Array) -> int | Illegal:
    """Return the legal choice that a text names first; of several at one position, the longest."""
    found = []
    for number, word in enumerate(choices):
        named = re.search(rf"(?<![\w.]){re.escape(word)}(?![\w]|\.\d)", text, re.IGNORECASE)
        if named:
            found.append((named.start(), -len(word), number))
    if not found or not legal[min(found)[2]]:
        return Illegal(text)
    return min(found)[2]
