"""A language model that answers from a function or a table: for tests and exact oracles.

A completion's text comes from the function, cut at stop words and at `max_tokens`; its tokens are its
UTF-8 bytes. Scores come from the table's probabilities, or from the function's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coterie.lm.interface import (
    Completion,
    LanguageModel,
    LMError,
    Prompt,
    Sampling,
    Scores,
    check_choices,
    cut,
    padded,
    spelled,
    stream,
)

Table = Mapping[str, Mapping[str, float]]  # prompt (its text, or its last message's) -> answer -> probability
Answer = Callable[[Prompt, np.random.Generator], str]  # the text of one sample
Judge = Callable[[Prompt, str], float]  # log-probability of a choice after a prompt


class Scripted(LanguageModel):
    """Answers by rule."""

    def __init__(self, answer: Answer, judge: Judge | None = None, identity: str = "scripted", width: int = 8) -> None:
        self.answer, self.judge, self.width = answer, judge or _fair, width
        self._identity = identity

    @classmethod
    def from_table(cls, table: Table, identity: str = "scripted table") -> Scripted:
        """Draw answers with the given probabilities and score them accordingly; greedy takes the likeliest."""

        def row(prompt: Prompt) -> Mapping[str, float]:
            text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            if text not in table:
                raise LMError(f"the scripted table has no prompt {text!r}")
            return table[text]

        def answer(prompt: Prompt, random: np.random.Generator) -> str:
            answers, weights = zip(*row(prompt).items())
            return str(answers[random.choice(len(answers), p=np.array(weights) / math.fsum(weights))])

        def judge(prompt: Prompt, choice: str) -> float:
            mine = row(prompt)
            share = mine.get(choice, 0.0) / math.fsum(mine.values())
            return math.log(share) if share else -math.inf

        made = cls(answer, judge, identity)
        made.greedy = lambda prompt: max(row(prompt), key=row(prompt).__getitem__)
        return made

    greedy: Callable[[Prompt], str] | None = None  # at temperature 0; None: the function with a stream of its own

    @property
    def identity(self) -> str:
        return self._identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return [[self._one(prompt, sampling, first + i, i == 0) for i in range(n)] for prompt in prompts]

    def _one(self, prompt: Prompt, sampling: Sampling, sample: int, counted: bool) -> Completion:
        if sampling.temperature == 0 and self.greedy is not None:
            whole = self.greedy(prompt)
        else:
            whole = self.answer(prompt, stream(sampling, prompt, sample if sampling.temperature else 0))
        text, stopped = cut(whole, sampling.stop)
        kept = text.encode()[: sampling.max_tokens]
        finish = "stop" if stopped or len(kept) == len(text.encode()) else "length"
        size = len(_text(prompt).encode()) if counted else 0
        return Completion(kept.decode(errors="ignore"), tuple(kept), (0.0,) * len(kept), finish, size, len(kept))

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        sizes = [[len(choice.encode()) for choice in mine] for mine in choices]
        return Scores(
            padded([[self.judge(p, c) for c in mine] for p, mine in zip(prompts, choices)], -math.inf, np.float64),
            padded(sizes, 0, np.int64),
            np.array([len(_text(p).encode()) + sum(mine) for p, mine in zip(prompts, sizes)], np.int64),
        )

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return len(_text(prompt).encode()) + sum(len(choice.encode()) for choice in choices)

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        def one(prompt: Prompt) -> np.ndarray:
            digest = hashlib.blake2b(spelled(prompt).encode(), digest_size=8).digest()
            drawn = np.random.default_rng(int.from_bytes(digest)).normal(size=self.width)
            return drawn / np.linalg.norm(drawn)

        return np.array([one(prompt) for prompt in prompts], np.float32).reshape(len(prompts), self.width)


def _fair(prompt: Prompt, choice: str) -> float:
    return -math.log(256) * len(choice.encode())  # every byte alike


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "".join(one["content"] for one in prompt)
