"""A language model that chooses among words: one question for every distinct text, remembered and calibrated.

What roles share. A text that the model may not read (its budget is spent, a server gave up, the cache only replays)
has no scores: NaN, an abstention. What follows from one is the role's affair.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from coterie.lm import calibrate
from coterie.lm.compose import LMSettings, LoadedModel, backend_of, open_backend, surround
from coterie.lm.interface import GaveUp, LanguageModel, Normalise, NotRecorded, Refused
from coterie.policies.prompts import Asking
from coterie.types import Array

Calibration = Literal["none", "content_free", "batch"]
CONTENT_FREE = ("N/A", "...", "Nothing is known.")  # descriptions without content, for `calibration: content_free`
REMEMBERED = 200_000  # answers; the model's own cache keeps all


class Chooser:
    """Scores of the same words after many texts."""

    def __init__(
        self,
        lm: LMSettings,
        asking: Asking,
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
        self.known: dict[str, Array] = {}  # text -> scores [C]
        self.refused: set[str] = set()  # texts that may not be read, and are not offered again
        if backend_of(lm) == "encoder":
            raise ValueError(f"lm: '{lm.name}' only embeds texts; name a model that can score words, as embedded does")
        calls = lm.budget.calls if lm.budget else None
        if calls is not None and calls <= len(self.samples) and lm.cache is None:
            raise ValueError(
                f"lm.budget.calls: {calls} leave nothing beyond the {len(self.samples)} texts that calibrate a model; "
                "raise it, or set calibration=none"
            )

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The model, loaded when it is first asked; all of one process that ask for the same share its weights."""
        return surround(shared_backend(_essence(self.settings)), self.settings)

    def log_probs(self, texts: Sequence[str]) -> Array:
        """[R, C] calibrated log-probabilities of all words; NaN in rows that the model was not allowed to read."""
        self._ask([*self.samples, *texts])
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

    def _ask(self, texts: Sequence[str]) -> None:
        """Score the texts that are not known yet, each once; on a refusal half of them may still fit."""
        if len(self.known) > REMEMBERED:
            self.known.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self.known and text not in self.refused]
        if not new:
            return
        words = [f" {word}" for word in self.words]
        try:
            found = self.lm.score([self.asking.prompt(text) for text in new], [words] * len(new), self.normalise)
        except (Refused, NotRecorded):  # what fits, or was recorded, may still be among them
            if len(new) == 1:
                self.refused.update(new)
                return
            self._ask(new[: len(new) // 2])
            self._ask(new[len(new) // 2 :])
            return
        except GaveUp:
            return
        self.known.update(zip(new, found, strict=True))


def _essence(settings: LMSettings) -> LMSettings:
    """What decides the back end: what stands around it belongs to each role."""
    return replace(settings, cache=None, budget=None)


@functools.cache
def shared_backend(settings: LMSettings) -> LanguageModel:
    """One back end for all of this process that ask for the same."""
    return open_backend(settings)
