"""The base class of wrappers around language models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.lm.ask.interface import Completion, LanguageModel, Prompt, Sampling, Scores


class Wrapper(LanguageModel):
    """Passes every request on to the model it wraps; a subclass overrides what it changes."""

    def __init__(self, inner: LanguageModel) -> None:
        self.inner = inner

    @property
    def identity(self) -> str:
        return self.inner.identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return self.inner.complete(prompts, n, sampling, first)

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        return self.inner.scores(prompts, choices)

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return self.inner.embed(prompts)

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.inner.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.inner.close()
