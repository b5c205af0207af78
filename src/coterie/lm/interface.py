"""What every language model offers, and how each of its failures is called.

Back ends answer; wrappers (cache, budget, retry, ledger, spread) have the same interface and pass on. All
methods take batches. Nothing here imports a deep-learning library.
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
Prompt = str | Sequence[Message]  # text to go on from, or a conversation for the model's chat template
Normalise = Literal["sum", "mean"]


# Failures -------------------------------------------------------------------------------------------


class LMError(CoterieError):
    """A language model gave no answer."""


class Unsupported(LMError):
    """This back end cannot do what is asked of it."""


class Missing(LMError):
    """A package or a file is not there; the message says how to get it."""


class Rejected(LMError):
    """The server understood the request and refuses it; asking again is no use."""


class Unavailable(LMError):
    """The server gave no usable answer this time; asking again may help."""

    def __init__(self, message: str, retry_after: float | None = None, billed: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds that the server asks us to wait
        self.billed = billed  # it may have worked for us, and count that


class RetriesExhausted(LMError):
    """Every attempt failed; the message tells of the last one."""


class NotRecorded(LMError):
    """The cache may only replay, and does not hold this answer."""


class BudgetDenied(LMError):
    """The budget does not cover the worst case of this call: nothing was asked."""


class BudgetExceeded(LMError):
    """The same where that is to end the run."""


# Questions and answers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How a completion is drawn."""

    max_tokens: int = 64  # the completion ends here at the latest
    temperature: float = 0.0  # 0: the likeliest token, always
    top_p: float = 1.0  # draw among the likeliest tokens that together have this probability
    top_k: int = 0  # draw among this many of the likeliest tokens; 0: among all
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    seed: int = 0  # sample i of a prompt is the same draw for the same seed, whatever else is in the batch

    def __post_init__(self) -> None:
        positive("max_tokens", self.max_tokens)
        at_least("temperature", self.temperature, 0)
        positive("top_p", self.top_p)
        within("top_p", self.top_p, 0, 1)
        at_least("top_k", self.top_k, 0)
        at_least("seed", self.seed, 0)
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop must be a tuple of words that are not empty, got {self.stop!r}")


@dataclass(frozen=True)
class Completion:
    """One sampled text. Tokens that end it (end of text, stop words) are among `tokens`, not in `text`."""

    text: str
    tokens: tuple[int, ...]  # ids as sampled; () where a server does not tell
    logprobs: tuple[float, ...]  # of each token under the model itself (temperature 1); () likewise
    finish: str  # "stop" or "length"
    prompt_tokens: int  # read for this sample; samples that share one reading count it once, in the first
    completion_tokens: int


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of choices after their prompts; C is the largest number of choices."""

    logprobs: np.ndarray  # [P, C] float64, summed over the choice's tokens; -inf where a prompt has fewer choices
    tokens: np.ndarray  # [P, C] int64, tokens of each choice; 0 where there is none
    read: np.ndarray  # [P] int64, tokens that were read to score the prompt's choices

    def normalised(self, how: Normalise = "sum") -> np.ndarray:
        """[P, C]: as they are, or per token."""
        if how not in ("sum", "mean"):
            raise ValueError(f"normalise must be 'sum' or 'mean', got {how!r}")
        return self.logprobs if how == "sum" else self.logprobs / np.maximum(self.tokens, 1)


class LanguageModel(ABC):
    """What back ends and wrappers have in common."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What answers: changes whenever answers to the same question may change, weights included."""

    @abstractmethod
    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        """Samples `first` to `first + n - 1` of every prompt."""

    @abstractmethod
    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        """Score one list of choices for each prompt."""

    @abstractmethod
    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """[P, D] float32: one vector of length 1 for each prompt."""

    def score(
        self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]], normalise: Normalise = "sum"
    ) -> np.ndarray:
        """[P, C]: log-probability of each choice after its prompt; -inf where a prompt has fewer choices."""
        return self.scores(prompts, choices).normalised(normalise)

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        """No more tokens than this are read to complete the prompt once, or to score the choices after it.

        A token is at least a byte; templates add a little; a server may read the prompt again for every
        token of every choice.
        """
        if isinstance(prompt, str):
            size = len(prompt.encode()) + 8
        else:
            size = 256 + sum(len(one["content"].encode()) + len(one["role"].encode()) + 16 for one in prompt)
        return sum((size + len(c.encode())) * len(c.encode()) for c in choices) if choices else size

    def close(self) -> None:  # noqa: B027  # most hold nothing that must be given back
        """Give back what is held: connections, threads, a server."""


# What back ends share -------------------------------------------------------------------------------


def spelled(prompt: Prompt) -> str:
    """A prompt as one canonical text, for keys."""
    return json.dumps(prompt if isinstance(prompt, str) else [[one["role"], one["content"]] for one in prompt])


def stream(sampling: Sampling, prompt: Prompt, sample: int) -> np.random.Generator:
    """What sample number `sample` of a prompt draws from."""
    digest = hashlib.blake2b(spelled(prompt).encode(), digest_size=8).hexdigest()
    return seeding.generator(sampling.seed, "lm sample", digest, sample)


def check_choices(prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> None:
    """Refuse what has no score."""
    if len(prompts) != len(choices):
        raise ValueError(f"one list of choices for each prompt: got {len(prompts)} prompts, {len(choices)} lists")
    for number, mine in enumerate(choices):
        if isinstance(mine, str) or not mine or "" in mine:
            raise ValueError(f"choices of prompt {number} must be a list of texts, none of them empty, got {mine!r}")


def padded(rows: Sequence[Sequence[float]], fill: float, dtype: type) -> np.ndarray:
    """[P, C] from ragged rows."""
    out: np.ndarray = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop word, and whether there was one."""
    ends = [at for at in map(text.find, stop) if at >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def needs(module: str, extra: str) -> Any:
    """Import a module that comes with an extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _not_installed(error.name or module, extra) from None


def check_installed(module: str, extra: str) -> None:
    """Refuse where a module that comes with an extra is not there, without the time that importing it takes."""
    if importlib.util.find_spec(module) is None:
        raise _not_installed(module, extra)


def _not_installed(module: str, extra: str) -> Missing:
    return Missing(f"'{module}' is not installed: pip install 'coterie[{extra}]'")
