"""Counts what language models are used for: calls, tokens, seconds, cache hits, refusals, retries.

`UsageCounter` holds the counts; each wrapper adds its own. `UsageTracking` wraps the back end and counts the requests
that reach it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from coterie.lm.ask.interface import Completion, LanguageModel, LMError, Prompt, Sampling, Scores
from coterie.lm.ask.wrapper import Wrapper

COUNTS = (
    *("calls", "failures", "prompt_tokens", "completion_tokens", "scored_tokens", "seconds"),
    *("cache_hits", "cache_misses", "refusals", "retries"),
)


class UsageCounter:
    """Counts since the start of the run; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(COUNTS, 0.0)

    def add(self, **counts: float) -> None:
        with self.lock:
            for name, count in counts.items():
                self.counts[name] += count

    def metrics(self) -> dict[str, float]:
        """Return all counts so far, for metrics.jsonl."""
        with self.lock:
            return {f"lm/{name}": count for name, count in self.counts.items()}

    def state(self) -> dict[str, float]:
        with self.lock:
            return dict(self.counts)

    def load(self, state: dict[str, float]) -> None:
        with self.lock:
            self.counts = dict.fromkeys(COUNTS, 0.0) | state


class UsageTracking(Wrapper):
    """Counts the calls, tokens, time and failures of the model it wraps. One prompt is one call."""

    def __init__(self, inner: LanguageModel, usage: UsageCounter) -> None:
        super().__init__(inner)
        self.usage = usage

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        with _Timer(self.usage, len(prompts)):
            found = self.inner.complete(prompts, n, sampling, first)
        samples = [sample for of_prompt in found for sample in of_prompt]
        self.usage.add(
            prompt_tokens=sum(sample.prompt_tokens for sample in samples),
            completion_tokens=sum(sample.completion_tokens for sample in samples),
        )
        return found

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        with _Timer(self.usage, len(prompts)):
            found = self.inner.scores(prompts, choices)
        self.usage.add(scored_tokens=int(found.tokens_read.sum()))
        return found

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        with _Timer(self.usage, len(prompts)):
            found = self.inner.embed(prompts)
        # exact for local models; an upper bound for servers, which do not report it
        self.usage.add(prompt_tokens=sum(map(self.inner.max_prompt_tokens, prompts)))
        return found


class _Timer:
    """Counts calls, elapsed time and failures of the code inside the block."""

    def __init__(self, usage: UsageCounter, calls: int) -> None:
        self.usage, self.calls = usage, calls

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        failed = error is not None and issubclass(error, LMError)
        self.usage.add(calls=self.calls, seconds=time.perf_counter() - self.start, failures=float(failed))
