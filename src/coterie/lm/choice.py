"""A language model that chooses among words: one question for every distinct text, remembered and calibrated.

What roles share. A text that the model may not read (its budget is spent, a server gave up, the cache only replays)
has no scores: NaN, an abstention. What follows from one is the role's affair. A server that gave up is left alone for
a while: every attempt takes seconds, and whoever plays asks at every tick.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np

from coterie.core.types import Array
from coterie.lm import calibration as calibrate
from coterie.lm.interface import (
    BudgetDenied,
    LanguageModel,
    Normalise,
    NotRecorded,
    Rejected,
    RetriesExhausted,
    Unavailable,
)
from coterie.lm.load import LMSettings, LoadedModel, backend_of, open_backend, surround
from coterie.lm.prompts import PromptTemplate

log = logging.getLogger("coterie")
Question = TypeVar("Question")
Said = TypeVar("Said")
Calibration = Literal["none", "content_free", "batch"]
CONTENT_FREE = ("N/A", "...", "Nothing is known.")  # descriptions without content, for `calibration: content_free`
REMEMBERED = 200_000  # answers; the model's own cache keeps all
LONGEST_REST = 64  # times that a server which gave up again and again is not asked


class Patience:
    """When to ask a server again that gave up: after one time without it, then after two, four and so on."""

    def __init__(self) -> None:
        self.failures, self.left = 0, 0  # in a row; times without it that are still to come
        self.resting = False  # it is left alone this time
        self.heard = False  # it has answered before

    def turn(self) -> bool:
        """Begin another time of asking; whether the server is to be left alone."""
        self.resting = self.left > 0
        self.left -= self.resting
        return self.resting

    def failed(self, error: RetriesExhausted | Unavailable) -> None:
        """It gave up."""
        if not self.failures:
            log.warning("language model: %s; what it does not answer counts as abstentions", error)
        self.left, self.resting = min(2**self.failures, LONGEST_REST), True
        self.failures += 1

    def answered(self) -> None:
        """It is there."""
        self.failures, self.heard = 0, True


class Answers(Generic[Question, Said]):
    """What a model said to questions, each asked once, as far as it may be asked."""

    def __init__(self, score: Callable[[Sequence[Question]], Iterable[Said]]) -> None:
        """`score` asks the model."""
        self.score, self.patience = score, Patience()
        self.known: dict[Question, Said] = {}
        self.refused: set[Question] = set()  # what may not be read, and is not offered again
        self.rejected: Rejected | None = None  # why a server refused the latest question that it did

    def ask(self, questions: Iterable[Question]) -> None:
        """Have those answered that are not known yet."""
        if len(self.known) > REMEMBERED:
            self.known.clear()
        new = [one for one in dict.fromkeys(questions) if one not in self.known and one not in self.refused]
        if new and not self.patience.turn():
            self._ask(new)
            if self.rejected and not self.patience.heard and self.refused.issuperset(new):
                raise self.rejected  # nothing was ever answered: a wrong key or name, not an odd question

    def _ask(self, new: list[Question]) -> None:
        try:
            found = self.score(new)
        except (BudgetDenied, NotRecorded, Rejected) as error:  # what fits, or was recorded, may still be among them
            if len(new) == 1:
                self.refused.update(new)
                if isinstance(error, Rejected):
                    log.warning("language model: %s; the question counts as an abstention", error)
                    self.rejected = error
                return
            self._ask(new[: len(new) // 2])
            if not self.patience.resting:  # it may have given up on the first half
                self._ask(new[len(new) // 2 :])
        except (RetriesExhausted, Unavailable) as error:
            self.patience.failed(error)
        else:
            self.patience.answered()
            self.known.update(zip(new, found, strict=True))


class ChoiceScorer:
    """Scores of the same words after many texts."""

    def __init__(
        self,
        lm: LMSettings,
        asking: PromptTemplate,
        words: Sequence[str],
        samples: Sequence[str] = (),
        calibration: Calibration = "none",
        normalise: Normalise = "sum",
    ) -> None:
        """`samples` are texts of various moments, for `calibration: batch`."""
        self.settings, self.asking, self.words, self.normalise = lm, asking, tuple(words), normalise
        self.calibration = calibration
        self.samples: Sequence[str] = {"none": (), "content_free": CONTENT_FREE, "batch": samples}[calibration]
        if calibration != "none" and not self.samples:
            raise ValueError("calibration=batch: the codec has no samples of descriptions; set content_free or none")
        self.answers: Answers[str, Array] = Answers(self._score)  # text -> scores [C]
        if backend_of(lm) == "encoder":
            raise ValueError(f"lm: '{lm.name}' only embeds texts; name a model that can score words, as embedded does")
        calls = lm.budget.calls if lm.budget else None
        fresh = lm.cache is None or not Path(lm.cache.path).exists()
        if calls is not None and calls <= len(self.samples) and fresh:
            raise ValueError(
                f"lm.budget.calls: {calls} leave nothing beyond the {len(self.samples)} texts that calibrate a model; "
                "raise it, or set calibration=none"
            )

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The model, loaded when it is first asked."""
        return open_shared(self.settings)

    @property
    def known(self) -> dict[str, Array]:
        """Scores `[C]` of texts, as far as they are known."""
        return self.answers.known

    def log_probs(self, texts: Sequence[str]) -> Array:
        """[R, C] calibrated log-probabilities of all words; NaN in rows that the model was not allowed to read."""
        self.answers.ask([*self.samples, *texts])
        unknown = np.full(len(self.words), np.nan)
        scores = np.array([self.known.get(text, unknown) for text in texts]).reshape(-1, len(self.words))
        if self.calibration == "none":
            return scores
        prior = self._prior()
        if prior is None:
            return np.full_like(scores, np.nan)
        heard = ~np.isnan(scores).any(axis=1)
        scores[heard] = calibrate.calibrated(scores[heard], prior)
        return scores

    def _prior(self) -> Array | None:
        """[C]: what the model likes in any case, or None if it may not say."""
        if any(text not in self.known for text in self.samples):
            return None
        scores = np.array([self.known[text] for text in self.samples])
        made = calibrate.batch_prior if self.calibration == "batch" else calibrate.content_free_prior
        return made(scores)

    def _score(self, texts: Sequence[str]) -> Array:
        """[R, C], from the model."""
        words = [f" {word}" for word in self.words]
        return self.lm.score([self.asking.prompt(text) for text in texts], [words] * len(texts), self.normalise)


def open_shared(settings: LMSettings) -> LoadedModel:
    """A model with a cache and a budget of its own; all of one process that ask for the same share its weights."""
    return surround(shared_backend(replace(settings, cache=None, budget=None)), settings)


@functools.cache
def shared_backend(settings: LMSettings) -> LanguageModel:
    """One back end for all of this process that ask for the same."""
    return open_backend(settings)
