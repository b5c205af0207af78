"""Answers kept on disk, so that no question is paid for twice and a run can be replayed exactly.

A key is a hash of the model's identity, the parameters and the question: for completions the prompt and
the number of the sample, for scores the prompt and one choice, for embeddings the prompt. So three samples
asked for after one ask for two more, and a new choice is scored alone.

Modes: `replay` uses what is there, asks for the rest and keeps it; `record` asks for everything anew and
keeps it in place of what was there; `replay-only` asks for nothing and raises `NotRecorded`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.validation import at_least
from coterie.lm.interface import (
    Completion,
    LanguageModel,
    NotRecorded,
    Prompt,
    Sampling,
    Scores,
    check_choices,
    padded,
    spelled,
)
from coterie.lm.wrappers.sqlite import Store
from coterie.lm.wrappers.usage import Ledger

SCHEMA = 1  # part of every key: a new one makes old answers unreachable
AT_ONCE = 900  # keys in one query
SCORE = struct.Struct("<dq")  # log-probability, tokens
Mode = Literal["replay", "record", "replay-only"]


@dataclass(frozen=True)
class CacheSettings:
    """Where answers are kept and how they are used."""

    path: str  # an SQLite file; made if it is not there
    mode: Mode = "replay"  # replay, record or replay-only
    in_memory: int = 100_000  # answers kept in memory, too; 0: none

    def __post_init__(self) -> None:
        at_least("in_memory", self.in_memory, 0)
        if self.mode not in ("replay", "record", "replay-only"):
            raise ValueError(f"mode must be replay, record or replay-only, got {self.mode!r}")


class Cache(LanguageModel):
    """Asks only for what it does not know."""

    def __init__(
        self, inner: LanguageModel, settings: CacheSettings, store: Store | None = None, ledger: Ledger | None = None
    ) -> None:
        self.inner, self.settings = inner, settings
        self.store = store or Store(settings.path)
        self.ledger = ledger or Ledger()
        self.near: dict[bytes, bytes] = {}

    @property
    def identity(self) -> str:
        return self.inner.identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        base = self._base("complete", json.dumps(asdict(sampling)))
        greedy = sampling.temperature == 0
        heads = [_sub(base, spelled(prompt)) for prompt in prompts]
        wanted = [0] if greedy else list(range(first, first + n))  # all greedy samples are one
        keys = [[_key(head, str(sample)) for sample in wanted] for head in heads]
        known = self._look_up([key for mine in keys for key in mine])
        missing: dict[tuple[int, ...], dict[bytes, int]] = {}  # samples -> first of their keys -> prompt
        for number, mine in enumerate(keys):
            lacking = [place for place, key in enumerate(mine) if key not in known]
            for run in _runs(lacking):
                missing.setdefault(tuple(wanted[place] for place in run), {})[mine[run[0]]] = number
        for samples, asked in missing.items():
            numbers = list(asked.values())
            rows = {number: [keys[number][wanted.index(sample)] for sample in samples] for number in numbers}
            known |= self._ask_completions(prompts, rows, samples, sampling)
        found = [[_completion(known[key]) for key in mine] for mine in keys]
        return [mine * n for mine in found] if greedy else found

    def _ask_completions(
        self, prompts: Sequence[Prompt], rows: dict[int, list[bytes]], samples: tuple[int, ...], sampling: Sampling
    ) -> dict[bytes, bytes]:
        self._may_ask(prompts, rows)
        numbers = list(rows)
        found = self.inner.complete([prompts[i] for i in numbers], len(samples), sampling, samples[0])
        pairs = ((key, sample) for number, mine in zip(numbers, found) for key, sample in zip(rows[number], mine))
        return self._keep({key: json.dumps(asdict(sample)).encode() for key, sample in pairs})

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        base = self._base("score", "")
        keys = []
        for prompt, mine in zip(prompts, choices):
            head = _sub(base, spelled(prompt))
            keys.append([_key(head, choice) for choice in mine])
        known = self._look_up([key for mine in keys for key in mine])
        lacking: dict[int, dict[bytes, str]] = {}  # prompt -> key -> choice
        claimed: set[bytes] = set()
        for number, (row, mine) in enumerate(zip(keys, choices)):
            for key, choice in zip(row, mine):
                if key not in known and key not in claimed:
                    claimed.add(key)
                    lacking.setdefault(number, {})[key] = choice
        read = np.zeros(len(prompts), np.int64)
        if lacking:
            self._may_ask(prompts, lacking)
            fresh, tokens_read = self._ask_scores(prompts, lacking)
            known |= fresh
            read[list(lacking)] = tokens_read
        pairs = [[SCORE.unpack(known[key]) for key in row] for row in keys]
        return Scores(
            padded([[one[0] for one in mine] for mine in pairs], -np.inf, np.float64),
            padded([[one[1] for one in mine] for mine in pairs], 0, np.int64),
            read,
        )

    def _ask_scores(
        self, prompts: Sequence[Prompt], lacking: dict[int, dict[bytes, str]]
    ) -> tuple[dict[bytes, bytes], np.ndarray]:
        numbers = list(lacking)
        found = self.inner.scores([prompts[i] for i in numbers], [list(lacking[i].values()) for i in numbers])
        answers = {
            key: SCORE.pack(float(found.logprobs[row, place]), int(found.tokens[row, place]))
            for row, number in enumerate(numbers)
            for place, key in enumerate(lacking[number])
        }
        return self._keep(answers), found.read

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        base = self._base("embed", "")
        keys = [_key(base, spelled(prompt)) for prompt in prompts]
        known = self._look_up(keys)
        lacking = {key: number for number, key in enumerate(keys) if key not in known}
        if lacking:
            self._may_ask(prompts, list(lacking.values()))
            found = self.inner.embed([prompts[i] for i in lacking.values()])
            known |= self._keep({key: np.asarray(row, "<f4").tobytes() for key, row in zip(lacking, found)})
        return np.array([np.frombuffer(known[key], "<f4") for key in keys], np.float32)

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.inner.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.store.close()
        self.inner.close()

    # Keys and answers ---------------------------------------------------------------------------------

    def _base(self, kind: str, parameters: str) -> Any:
        digest = hashlib.blake2b(digest_size=20)
        for part in (str(SCHEMA), kind, self.inner.identity, parameters):
            _feed(digest, part)
        return digest

    def _look_up(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """Those that are there; in `record` mode nothing is."""
        if self.settings.mode == "record":
            known: dict[bytes, bytes] = {}
        else:
            known = {key: self.near[key] for key in keys if key in self.near}
            far = self._select([key for key in dict.fromkeys(keys) if key not in known])
            self._remember(far)
            known |= far
        hits = sum(key in known for key in keys)
        self.ledger.add(cache_hits=hits, cache_misses=len(keys) - hits)
        return known

    def _select(self, keys: list[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        with self.store.reading() as connection:
            for begin in range(0, len(keys), AT_ONCE):
                part = keys[begin : begin + AT_ONCE]
                marks = ",".join("?" * len(part))
                found |= dict(connection.execute(f"select key, value from answers where key in ({marks})", part))
        return found

    def _may_ask(self, prompts: Sequence[Prompt], numbers: Any) -> None:
        if self.settings.mode == "replay-only":
            example = spelled(prompts[next(iter(numbers))])[-60:]
            raise NotRecorded(
                f"'{self.settings.path}' does not hold {len(numbers)} of the answers, such as to …{example}"
            )

    def _keep(self, answers: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Store answers and return those that count: where another process was first, its answer."""
        word = "replace" if self.settings.mode == "record" else "ignore"
        if answers:
            with self.store.writing() as connection:
                connection.executemany(f"insert or {word} into answers values (?, ?)", answers.items())
                answers = self._select(list(answers))
            self._remember(answers)
        return answers

    def _remember(self, answers: dict[bytes, bytes]) -> None:
        if len(self.near) + len(answers) > self.settings.in_memory:
            self.near = {}  # rare, and the file is quick as well
        if len(answers) <= self.settings.in_memory:
            self.near.update(answers)


def _feed(digest: Any, part: str) -> None:
    raw = part.encode()
    digest.update(struct.pack("<q", len(raw)))  # so that no two questions are spelled alike
    digest.update(raw)


def _sub(base: Any, part: str) -> Any:
    digest = base.copy()
    _feed(digest, part)
    return digest


def _key(head: Any, part: str) -> bytes:
    key: bytes = _sub(head, part).digest()
    return key


def _completion(value: bytes) -> Completion:
    raw = json.loads(value)
    return Completion(**raw | {"tokens": tuple(raw["tokens"]), "logprobs": tuple(raw["logprobs"])})


def _runs(places: Sequence[int]) -> list[list[int]]:
    """Neighbours together: [0, 1, 4] is [0, 1] and [4]."""
    found: list[list[int]] = []
    for place in places:
        if found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found
