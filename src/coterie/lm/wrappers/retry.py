"""Asking again when a server was busy or broke off: one layer, and the only one that does so.

Waits grow exponentially with a jitter that is a hash of question and attempt: no clock, no shared random
state, and different questions wait differently. A server's Retry-After is honoured.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from coterie.core.validation import at_least, positive, within
from coterie.lm.interface import (
    Completion,
    LanguageModel,
    Prompt,
    RetriesExhausted,
    Sampling,
    Scores,
    Unavailable,
    spelled,
)
from coterie.lm.wrappers.usage import Ledger

log = logging.getLogger("coterie")
Found = TypeVar("Found")


@dataclass(frozen=True)
class RetrySettings:
    """How often and how patiently."""

    attempts: int = 5  # in all, the first one included
    wait: float = 0.5  # seconds before the second attempt; doubles each time
    longest_wait: float = 30.0  # seconds; a server that asks for more is given up at once
    jitter: float = 0.5  # share of a wait that is up to chance

    def __post_init__(self) -> None:
        at_least("attempts", self.attempts, 1)
        at_least("wait", self.wait, 0)
        positive("longest_wait", self.longest_wait)
        within("jitter", self.jitter, 0, 1)


class Retry(LanguageModel):
    """Asks again where that may help."""

    def __init__(
        self,
        inner: LanguageModel,
        settings: RetrySettings = RetrySettings(),
        ledger: Ledger | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner, self.settings, self.sleep = inner, settings, sleep
        self.ledger = ledger or Ledger()
        self.memory = threading.local()

    @property
    def attempts(self) -> int:
        return self.settings.attempts

    def lost(self) -> int:
        """Failed attempts of this thread's latest call that may be billed nonetheless."""
        return int(vars(self.memory).get("lost", 0))

    @property
    def identity(self) -> str:
        return self._persist([], lambda: self.inner.identity)  # a server may have to be asked for it

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return self._persist(prompts, lambda: self.inner.complete(prompts, n, sampling, first))

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        return self._persist(prompts, lambda: self.inner.scores(prompts, choices))

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return self._persist(prompts, lambda: self.inner.embed(prompts))

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.inner.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.inner.close()

    def _persist(self, prompts: Sequence[Prompt], ask: Callable[[], Found]) -> Found:
        self.memory.lost = 0
        attempt = 1
        while True:
            try:
                return ask()
            except Unavailable as error:
                self.memory.lost += error.billed
                if attempt == self.settings.attempts:
                    raise RetriesExhausted(f"gave up after {attempt} attempts: {error}") from None
                question = "".join(map(spelled, prompts))
                seconds = wait_before(self.settings, attempt, question, error.retry_after)
                if seconds > self.settings.longest_wait:
                    raise RetriesExhausted(f"gave up: the server asks to wait {seconds:g} s; {error}") from None
                log.info("language model: %s; asking again in %.1f s", error, seconds)
            self.ledger.add(retries=1)
            self.sleep(seconds)
            attempt += 1


def wait_before(settings: RetrySettings, attempt: int, question: str, asked: float | None) -> float:
    """Seconds to wait after the given attempt failed; never less than the server asked for."""
    digest = hashlib.blake2b(f"{attempt} {question}".encode(), digest_size=8).digest()
    chance = int.from_bytes(digest) / 2**64
    longest = min(settings.wait * 2.0 ** (attempt - 1), settings.longest_wait)
    own = longest * (1 - settings.jitter * chance)
    return own if asked is None else max(asked, own)
