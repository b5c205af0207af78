"""Splits a batch into single prompts and sends several in parallel, for back ends that take one at a time.

If some fail, the others are still sent, and the first failure is raised at the end. A cache inside this wrapper stores
every answer as it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from coterie.core.validation import positive
from coterie.lm.ask.interface import Completion, LanguageModel, Prompt, Sampling, Scores
from coterie.lm.ask.wrapper import Wrapper

Result = TypeVar("Result")


class Concurrent(Wrapper):
    """Sends up to `max_concurrency` single prompts in parallel, each in its own thread."""

    def __init__(self, inner: LanguageModel, max_concurrency: int = 8) -> None:
        positive("max_concurrency", max_concurrency)
        super().__init__(inner)
        self.pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="lm")

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return self._map(len(prompts), lambda i: self.inner.complete([prompts[i]], n, sampling, first)[0])

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        if len(prompts) != len(choices):
            raise ValueError(f"choices: expected one list per prompt, got {len(choices)} for {len(prompts)} prompts")
        return Scores.concatenate(self._map(len(prompts), lambda i: self.inner.scores([prompts[i]], [choices[i]])))

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return np.array(self._map(len(prompts), lambda i: self.inner.embed([prompts[i]])[0]), np.float32)

    def close(self) -> None:
        self.pool.shutdown()
        super().close()

    def _map(self, count: int, request: Callable[[int], Result]) -> list[Result]:
        futures = [self.pool.submit(request, number) for number in range(count)]
        wait(futures)
        return [future.result() for future in futures]
