"""A language model that answers from a function or a table, for tests and exact oracles.

The text of a completion comes from the function, cut at stop strings and at `max_tokens`; its tokens are its UTF-8
bytes. Scores come from a second function, or from the probabilities of the table.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    LMError,
    Prompt,
    Sampling,
    Scores,
    canonical_json,
    check_choices,
    cut_at_stop,
    pad_rows,
    sample_generator,
)

Table = Mapping[str, Mapping[str, float]]  # prompt (its text, or that of its last message) -> answer -> probability
AnswerFunction = Callable[[Prompt, np.random.Generator], str]  # the text of one sample
LogProbFunction = Callable[[Prompt, str], float]  # log-probability of a choice after a prompt


class Scripted(LanguageModel):
    """Answers by function or table."""

    def __init__(
        self,
        answer: AnswerFunction,
        logprob: LogProbFunction | None = None,
        identity: str | None = None,
        width: int = 8,
    ) -> None:
        """`logprob` None gives every byte the same probability; `width` is the size of embeddings.

        `identity` names the functions in cache keys: name another one whenever they answer differently. None: a digest
        of their code and of the variables that they enclose; it does not follow what they read elsewhere.
        """
        self.answer, self.logprob, self.width = answer, logprob or _uniform_bytes, width
        named = _digest([_describe(self.answer), _describe(self.logprob)]) if identity is None else identity
        self._identity = f"scripted {named} {width}"

    @classmethod
    def from_table(cls, table: Table, identity: str = "table") -> Scripted:
        """Sample and score answers with the given probabilities; temperature 0 takes the most likely one."""
        identity = f"{identity} {_digest([[prompt, *answers.items()] for prompt, answers in table.items()])}"

        def answers_of(prompt: Prompt) -> Mapping[str, float]:
            text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            if text not in table:
                raise LMError(f"the scripted table has no prompt {text!r}")
            return table[text]

        def answer(prompt: Prompt, random: np.random.Generator) -> str:
            answers, weights = zip(*answers_of(prompt).items())
            return str(answers[random.choice(len(answers), p=np.array(weights) / math.fsum(weights))])

        def logprob(prompt: Prompt, choice: str) -> float:
            answers = answers_of(prompt)
            probability = answers.get(choice, 0.0) / math.fsum(answers.values())
            return math.log(probability) if probability else -math.inf

        made = cls(answer, logprob, identity)
        made.greedy = lambda prompt: max(answers_of(prompt), key=answers_of(prompt).__getitem__)
        return made

    greedy: Callable[[Prompt], str] | None = None  # answer at temperature 0; None: `answer` with a fixed generator

    @property
    def identity(self) -> str:
        return self._identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return [[self._complete(prompt, sampling, first + i, i == 0) for i in range(n)] for prompt in prompts]

    def _complete(self, prompt: Prompt, sampling: Sampling, sample: int, count_prompt: bool) -> Completion:
        if sampling.temperature == 0 and self.greedy is not None:
            whole = self.greedy(prompt)
        else:
            whole = self.answer(prompt, sample_generator(sampling, prompt, sample if sampling.temperature else 0))
        text, stopped = cut_at_stop(whole, sampling.stop)
        kept = text.encode()[: sampling.max_tokens]
        finish = "stop" if stopped or len(kept) == len(text.encode()) else "length"
        size = len(_text(prompt).encode()) if count_prompt else 0
        return Completion(kept.decode(errors="ignore"), tuple(kept), (0.0,) * len(kept), finish, size, len(kept))

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        logprobs = [[self.logprob(prompt, choice) for choice in row] for prompt, row in zip(prompts, choices)]
        sizes = [[len(choice.encode()) for choice in row] for row in choices]
        return Scores(
            pad_rows(logprobs, -math.inf, np.float64),
            pad_rows(sizes, 0, np.int64),
            np.array([len(_text(prompt).encode()) + sum(row) for prompt, row in zip(prompts, sizes)], np.int64),
        )

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return len(_text(prompt).encode()) + sum(len(choice.encode()) for choice in choices)

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Return a pseudo-random unit vector per prompt, drawn from a hash of its text."""

        def vector(prompt: Prompt) -> np.ndarray:
            digest = hashlib.blake2b(canonical_json(prompt).encode(), digest_size=8).digest()
            drawn = np.random.default_rng(int.from_bytes(digest)).normal(size=self.width)
            return drawn / np.linalg.norm(drawn)

        return np.array([vector(prompt) for prompt in prompts], np.float32).reshape(len(prompts), self.width)


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, default=repr).encode(), digest_size=16).hexdigest()


def _describe(value: Any, outer: tuple[Any, ...] = ()) -> Any:
    """Return a function's code, defaults and enclosed variables, and any other value, as JSON."""
    if isinstance(value, CodeType):
        return [value.co_code.hex(), value.co_names, [_describe(constant) for constant in value.co_consts]]
    if isinstance(value, FunctionType) and value not in outer:  # a recursive function encloses itself
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        return [_describe(one, (*outer, value)) for one in (value.__code__, *(value.__defaults__ or ()), *enclosed)]
    return value.__qualname__ if isinstance(value, FunctionType) else repr(value)


def _uniform_bytes(prompt: Prompt, choice: str) -> float:
    return -math.log(256) * len(choice.encode())


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "".join(one["content"] for one in prompt)
