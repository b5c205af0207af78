"""The interface of every language model, its data types and its errors.

Back ends answer. Wrappers (cache, budget, retry, concurrency, usage) have the same interface and call the model they
wrap. All methods take batches. This module imports no deep-learning library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core import seeding
from coterie.core.types import CoterieError
from coterie.core.validation import at_least, positive, within

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": …}
Prompt = str | Sequence[Message]  # text to continue, or a conversation for the model's chat template
Normalize = Literal["sum", "mean"]  # log-probability of a choice: summed over its tokens, or per token


# Errors ---------------------------------------------------------------------------------------------


class LMError(CoterieError):
    """A language model gave no answer."""


class Unsupported(LMError):
    """The back end does not support this request."""


class Missing(LMError):
    """A package or a file is missing; the message says how to get it."""


class Rejected(LMError):
    """The server refuses this request; a retry would fail as well."""


class Unavailable(LMError):
    """The server gave no usable answer; a retry may succeed."""

    def __init__(self, message: str, retry_after: float | None = None, billed: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds that the server asks us to wait
        self.billed = billed  # the server may have processed the request and charge for it


class RetriesExhausted(LMError):
    """Every attempt failed; the message describes the last failure."""


class NotRecorded(LMError):
    """The cache is in mode `replay-only` and does not hold this answer."""


class BudgetDenied(LMError):
    """The budget does not cover the worst case of this call, so no request was sent."""


class BudgetExceeded(LMError):
    """As `BudgetDenied`, with `at_limit: stop`: the run ends."""


class TooManyAbstentions(LMError):
    """More questions stay without an answer than `max_abstentions` allows: the run ends."""


# Requests and answers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling completions."""

    max_tokens: int = 64  # largest number of tokens of a completion
    temperature: float = 0.0  # 0: greedy decoding
    top_p: float = 1.0  # sample from the most likely tokens that together have this probability
    top_k: int = 0  # sample from this many most likely tokens; 0: from all
    stop: tuple[str, ...] = ()  # the text ends before the first of these strings
    seed: int = 0  # sample i of a prompt depends on this seed and not on the rest of the batch

    def __post_init__(self) -> None:
        positive("max_tokens", self.max_tokens)
        at_least("temperature", self.temperature, 0)
        positive("top_p", self.top_p)
        within("top_p", self.top_p, 0, 1)
        at_least("top_k", self.top_k, 0)
        at_least("seed", self.seed, 0)
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop must be a tuple of non-empty strings, got {self.stop!r}")


@dataclass(frozen=True)
class Completion:
    """One sampled text. Tokens that end it (end of text, stop strings) are in `tokens` but not in `text`."""

    text: str
    tokens: tuple[int, ...]  # ids as sampled; () where a server does not report them
    logprobs: tuple[float, ...]  # of each token at temperature 1; () where a server does not report them
    finish: str  # "stop" or "length"
    prompt_tokens: int  # read for this sample; 0 where an earlier sample of the same prompt counts them
    completion_tokens: int


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of choices after their prompts; C is the largest number of choices."""

    logprobs: np.ndarray  # [P, C] float64, summed over the tokens of a choice; -inf beyond a prompt's choices
    tokens: np.ndarray  # [P, C] int64, number of tokens of each choice; 0 beyond a prompt's choices
    tokens_read: np.ndarray  # [P] int64, tokens that the model read to score the prompt's choices

    def normalized(self, normalize: Normalize = "sum") -> np.ndarray:
        """Return `[P, C]` log-probabilities, summed over tokens or per token."""
        if normalize not in ("sum", "mean"):
            raise ValueError(f"normalize must be 'sum' or 'mean', got {normalize!r}")
        return self.logprobs if normalize == "sum" else self.logprobs / np.maximum(self.tokens, 1)

    @classmethod
    def concatenate(cls, parts: Sequence[Scores]) -> Scores:
        """Join the scores of several batches, padded to the largest number of choices."""
        width = max((part.logprobs.shape[1] for part in parts), default=0)

        def pad(array: np.ndarray, fill: float) -> np.ndarray:
            return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill)

        if not parts:
            return cls(np.zeros((0, 0)), np.zeros((0, 0), np.int64), np.zeros(0, np.int64))
        return cls(
            np.concatenate([pad(part.logprobs, -np.inf) for part in parts]),
            np.concatenate([pad(part.tokens, 0) for part in parts]),
            np.concatenate([part.tokens_read for part in parts]),
        )


class LanguageModel(ABC):
    """Base class of back ends and wrappers."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A string that changes whenever answers to the same request may change.

        It covers weights, adapters, configuration, tokenizer, chat template and settings. A cache stores answers by it.
        """

    @abstractmethod
    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        """Return samples `first` to `first + n - 1` of every prompt."""

    @abstractmethod
    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        """Score the choices of each prompt; there is one list of choices per prompt."""

    @abstractmethod
    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Return one unit vector per prompt, `[P, D]` float32."""

    def score(
        self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]], normalize: Normalize = "sum"
    ) -> np.ndarray:
        """Return `[P, C]` log-probabilities of choices after their prompts; -inf beyond a prompt's choices."""
        return self.scores(prompts, choices).normalized(normalize)

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        """Return an upper bound on the tokens read to complete the prompt once, or to score the choices.

        A token has at least one byte; chat templates add a few tokens; a server may read the prompt again for every
        token of every choice.
        """
        if isinstance(prompt, str):
            size = len(prompt.encode()) + 8
        else:
            size = 256 + sum(len(one["content"].encode()) + len(one["role"].encode()) + 16 for one in prompt)
        return sum((size + len(c.encode())) * len(c.encode()) for c in choices) if choices else size

    def close(self) -> None:  # noqa: B027  # most models hold nothing that must be released
        """Release connections, threads and servers."""


# Helpers for back ends and wrappers -----------------------------------------------------------------


def canonical_json(prompt: Prompt) -> str:
    """Return a prompt as one canonical string, for cache keys and seeds; every field of a message counts."""
    if isinstance(prompt, str):
        return json.dumps(prompt)
    messages = []
    for message in prompt:
        more = {name: value for name, value in sorted(message.items()) if name not in ("role", "content")}
        messages.append([message["role"], message["content"], *([more] if more else [])])
    return json.dumps(messages)


def sample_generator(sampling: Sampling, prompt: Prompt, sample: int) -> np.random.Generator:
    """Return the random generator of sample number `sample` of a prompt."""
    digest = hashlib.blake2b(canonical_json(prompt).encode(), digest_size=8).hexdigest()
    return seeding.generator(sampling.seed, "lm sample", digest, sample)


def check_choices(prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> None:
    """Raise `ValueError` unless every prompt has a list of non-empty choices."""
    if len(prompts) != len(choices):
        raise ValueError(f"choices: expected one list per prompt, got {len(choices)} lists for {len(prompts)} prompts")
    for number, options in enumerate(choices):
        if isinstance(options, str) or not options or "" in options:
            raise ValueError(f"choices of prompt {number}: expected a list of non-empty strings, got {options!r}")


def pad_rows(rows: Sequence[Sequence[float]], fill: float, dtype: type) -> np.ndarray:
    """Return rows of different lengths as one array `[P, C]`, filled up with `fill`."""
    out: np.ndarray = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop string, and whether there was one."""
    ends = [at for at in map(text.find, stop) if at >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def import_extra(module: str, extra: str) -> Any:
    """Import a module that belongs to an optional extra of this package."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _not_installed(error.name or module, extra) from None


def check_installed(module: str, extra: str) -> None:
    """Raise `Missing` unless a module of an optional extra is installed; does not import it, which may be slow."""
    if importlib.util.find_spec(module) is None:
        raise _not_installed(module, extra)


def _not_installed(module: str, extra: str) -> Missing:
    return Missing(f"'{module}' is not installed: pip install 'coterie[{extra}]'")
