"""What was asked and what it came to: calls, tokens, seconds, cache hits, refusals, retries.

`Ledger` counts; every wrapper that knows something tells it. `Metered` stands next to the back end and
tells it what really was asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from coterie.lm.interface import Completion, LanguageModel, LMError, Prompt, Sampling, Scores

COUNTS = (
    *("calls", "failures", "prompt_tokens", "completion_tokens", "scored_tokens", "seconds"),
    *("cache_hits", "cache_misses", "refusals", "retries"),
)


class Ledger:
    """Counts since the start of the run; safe for threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(COUNTS, 0.0)

    def add(self, **counts: float) -> None:
        with self.lock:
            for name, count in counts.items():
                self.counts[name] += count

    def metrics(self) -> dict[str, float]:
        """Everything counted so far, for metrics.jsonl."""
        with self.lock:
            return {f"lm/{name}": count for name, count in self.counts.items()}

    def state(self) -> dict[str, float]:
        with self.lock:
            return dict(self.counts)

    def load(self, state: dict[str, float]) -> None:
        with self.lock:
            self.counts = dict.fromkeys(COUNTS, 0.0) | state


class Metered(LanguageModel):
    """Tells the ledger what the back end was asked and what it took. One prompt is one call."""

    def __init__(self, inner: LanguageModel, ledger: Ledger) -> None:
        self.inner, self.ledger = inner, ledger

    @property
    def identity(self) -> str:
        return self.inner.identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        with _Watch(self.ledger, len(prompts)):
            found = self.inner.complete(prompts, n, sampling, first)
        samples = [sample for mine in found for sample in mine]
        self.ledger.add(
            prompt_tokens=sum(sample.prompt_tokens for sample in samples),
            completion_tokens=sum(sample.completion_tokens for sample in samples),
        )
        return found

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        with _Watch(self.ledger, len(prompts)):
            found = self.inner.scores(prompts, choices)
        self.ledger.add(scored_tokens=int(found.read.sum()))
        return found

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        with _Watch(self.ledger, len(prompts)):
            found = self.inner.embed(prompts)
        self.ledger.add(
            prompt_tokens=sum(map(self.inner.max_prompt_tokens, prompts))
        )  # of a server: no more than these
        return found

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.inner.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.inner.close()


class _Watch:
    """Counts the calls, the time and a failure of what happens inside."""

    def __init__(self, ledger: Ledger, calls: int) -> None:
        self.ledger, self.calls = ledger, calls

    def __enter__(self) -> None:
        self.begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        failed = kind is not None and issubclass(kind, LMError)
        self.ledger.add(calls=self.calls, seconds=time.perf_counter() - self.begin, failures=float(failed))
