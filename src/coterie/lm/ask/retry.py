"""Retries requests when a server is busy or the connection breaks; no other layer retries.

Waits grow exponentially. Their jitter is a hash of prompt and attempt, so it needs neither a clock nor shared random
state, and different prompts wait differently. A server's Retry-After header is honoured.
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
from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    Prompt,
    RetriesExhausted,
    Sampling,
    Scores,
    Unavailable,
    canonical_json,
)
from coterie.lm.ask.usage import UsageCounter
from coterie.lm.ask.wrapper import Wrapper

log = logging.getLogger("coterie")
Result = TypeVar("Result")


@dataclass(frozen=True)
class RetrySettings:
    """Number of attempts and the waits between them."""

    attempts: int = 5  # in all, the first one included
    wait: float = 0.5  # seconds before the second attempt; doubles each time
    max_wait: float = 30.0  # seconds; a server that asks for a longer wait is not retried
    jitter: float = 0.5  # fraction of a wait that varies between prompts

    def __post_init__(self) -> None:
        at_least("attempts", self.attempts, 1)
        at_least("wait", self.wait, 0)
        positive("max_wait", self.max_wait)
        within("jitter", self.jitter, 0, 1)


class Retry(Wrapper):
    """Retries requests that fail with `Unavailable`."""

    def __init__(
        self,
        inner: LanguageModel,
        settings: RetrySettings = RetrySettings(),
        usage: UsageCounter | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.settings, self.sleep = settings, sleep
        self.usage = usage or UsageCounter()
        self.thread_local = threading.local()

    @property
    def attempts(self) -> int:
        return self.settings.attempts

    def billed_failures(self) -> int:
        """Return how many failed attempts of this thread's latest call may be billed."""
        return int(vars(self.thread_local).get("billed_failures", 0))

    @property
    def identity(self) -> str:
        return self._retry([], lambda: self.inner.identity)  # may need a request to the server

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return self._retry(prompts, lambda: self.inner.complete(prompts, n, sampling, first))

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        return self._retry(prompts, lambda: self.inner.scores(prompts, choices))

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return self._retry(prompts, lambda: self.inner.embed(prompts))

    def _retry(self, prompts: Sequence[Prompt], request: Callable[[], Result]) -> Result:
        self.thread_local.billed_failures = 0
        attempt = 1
        while True:
            try:
                return request()
            except Unavailable as error:
                self.thread_local.billed_failures += error.billed
                if attempt == self.settings.attempts:
                    raise RetriesExhausted(f"gave up after {attempt} attempts: {error}") from None
                key = "".join(map(canonical_json, prompts))
                seconds = wait_before(self.settings, attempt, key, error.retry_after)
                if seconds > self.settings.max_wait:
                    raise RetriesExhausted(
                        f"gave up: the server asks for a wait of {seconds:g} s, "
                        f"retry.max_wait is {self.settings.max_wait:g} s; {error}"
                    ) from None
                log.info("language model: %s; retrying in %.1f s", error, seconds)
            self.usage.add(retries=1)
            self.sleep(seconds)
            attempt += 1


def wait_before(settings: RetrySettings, attempt: int, key: str, retry_after: float | None) -> float:
    """Return the seconds to wait after the given attempt failed; at least what the server asks for."""
    digest = hashlib.blake2b(f"{attempt} {key}".encode(), digest_size=8).digest()
    fraction = int.from_bytes(digest) / 2**64
    longest = min(settings.wait * 2.0 ** (attempt - 1), settings.max_wait)
    seconds = longest * (1 - settings.jitter * fraction)
    return seconds if retry_after is None else max(retry_after, seconds)
