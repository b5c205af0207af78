"""Splits a batch into single questions and asks several at once, for back ends that take one at a time.

If some fail, the others are still asked, and the first failure is raised at the end: a cache inside keeps
every answer as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from coterie.core.validation import positive
from coterie.lm.interface import Completion, LanguageModel, Prompt, Sampling, Scores

Found = TypeVar("Found")


class Spread(LanguageModel):
    """Up to `limit` single questions at once, each in a thread of its own."""

    def __init__(self, inner: LanguageModel, limit: int = 8) -> None:
        positive("limit", limit)
        self.inner = inner
        self.pool = ThreadPoolExecutor(limit, thread_name_prefix="lm")

    @property
    def identity(self) -> str:
        return self.inner.identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return self._each(len(prompts), lambda i: self.inner.complete([prompts[i]], n, sampling, first)[0])

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        if len(prompts) != len(choices):
            raise ValueError(f"one list of choices for each prompt: got {len(prompts)}, {len(choices)}")
        return joined(self._each(len(prompts), lambda i: self.inner.scores([prompts[i]], [choices[i]])))

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return np.array(self._each(len(prompts), lambda i: self.inner.embed([prompts[i]])[0]), np.float32)

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.inner.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.pool.shutdown()
        self.inner.close()

    def _each(self, count: int, ask: Callable[[int], Found]) -> list[Found]:
        futures = [self.pool.submit(ask, number) for number in range(count)]
        wait(futures)
        return [future.result() for future in futures]


def joined(parts: Sequence[Scores]) -> Scores:
    """Scores of several batches as one."""
    widest = max((part.logprobs.shape[1] for part in parts), default=0)

    def wide(array: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, widest - array.shape[1])), constant_values=fill)

    if not parts:
        return Scores(np.zeros((0, 0)), np.zeros((0, 0), np.int64), np.zeros(0, np.int64))
    return Scores(
        np.concatenate([wide(part.logprobs, -np.inf) for part in parts]),
        np.concatenate([wide(part.tokens, 0) for part in parts]),
        np.concatenate([part.read for part in parts]),
    )
