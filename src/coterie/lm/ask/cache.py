"""Stores answers on disk, so that no request is paid for twice and a run can be replayed exactly.

A key is a hash of the model's identity (all that can change its answers), the parameters and the request: for
completions the prompt and the number of the sample, for scores the prompt and one choice, for embeddings the prompt. So
a request for three samples after one for a single sample asks for two more, and a new choice is scored alone.

Modes: `replay` uses stored answers, asks for the others and stores them; `record` asks for everything and overwrites
stored answers; `replay-only` asks for nothing and raises `NotRecorded` for an answer that is not stored.

Answers are stored under hashes. Of a few requests, the first, second, fourth, eighth … that is asked, the words are
stored as well, as *samples* for people who want to read what a model was asked.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from coterie.core.validation import at_least, one_of
from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    NotRecorded,
    Prompt,
    Sampling,
    Scores,
    canonical_json,
    check_choices,
    pad_rows,
)
from coterie.lm.ask.sqlite import SqliteStore
from coterie.lm.ask.usage import UsageCounter
from coterie.lm.ask.wrapper import Wrapper

SCHEMA = 2  # part of every key: a new number makes old answers unreachable
KEYS_PER_QUERY = 900
SCORE = struct.Struct("<dq")  # log-probability, number of tokens
Mode = Literal["replay", "record", "replay-only"]


@dataclass(frozen=True)
class CacheSettings:
    """Settings of the cache: its file, and the use of stored answers."""

    path: str  # an SQLite file; created if it does not exist
    mode: Mode = "replay"  # replay, record or replay-only
    memory_entries: int = 100_000  # answers that are also held in memory; 0: none

    def __post_init__(self) -> None:
        at_least("memory_entries", self.memory_entries, 0)
        one_of("mode", self.mode, get_args(Mode))


class Cache(Wrapper):
    """Asks the model it wraps only for answers that are not stored."""

    def __init__(
        self,
        inner: LanguageModel,
        settings: CacheSettings,
        store: SqliteStore | None = None,
        usage: UsageCounter | None = None,
        keep_samples: bool = True,
    ) -> None:
        """`keep_samples`: store the words of a few requests; of several caches for one request, one should."""
        super().__init__(inner)
        self.settings = settings
        self.store = store or SqliteStore(settings.path)
        self.usage = usage or UsageCounter()
        self.keep_samples = keep_samples
        self.memory: dict[bytes, bytes] = {}
        self.asked = 0  # prompts that were not stored, by this process

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        base = self._base("complete", json.dumps(asdict(sampling)))
        greedy = sampling.temperature == 0
        of_prompt = [_extend(base, canonical_json(prompt)) for prompt in prompts]
        wanted = [0] if greedy else list(range(first, first + n))  # all greedy samples are equal
        keys = [[_key(digest, str(sample)) for sample in wanted] for digest in of_prompt]
        known = self._look_up([key for row in keys for key in row])
        missing: dict[tuple[int, ...], dict[bytes, int]] = {}  # samples -> first of their keys -> prompt
        for number, row in enumerate(keys):
            places = [place for place, key in enumerate(row) if key not in known]
            for run in _consecutive(places):
                missing.setdefault(tuple(wanted[place] for place in run), {})[row[run[0]]] = number
        for samples, by_key in missing.items():
            numbers = list(by_key.values())
            rows = {number: [keys[number][wanted.index(sample)] for sample in samples] for number in numbers}
            known |= self._ask_completions(prompts, rows, samples, sampling)
        found = [[_completion(known[key]) for key in row] for row in keys]
        return [row * n for row in found] if greedy else found

    def _ask_completions(
        self, prompts: Sequence[Prompt], rows: dict[int, list[bytes]], samples: tuple[int, ...], sampling: Sampling
    ) -> dict[bytes, bytes]:
        self._check_may_ask(prompts, rows)
        numbers = list(rows)
        found = self.inner.complete([prompts[i] for i in numbers], len(samples), sampling, samples[0])
        self._sample([prompts[i] for i in numbers], lambda row: {"completion": found[row][0].text})
        pairs = ((key, sample) for number, row in zip(numbers, found) for key, sample in zip(rows[number], row))
        return self._put({key: json.dumps(asdict(sample)).encode() for key, sample in pairs})

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        base = self._base("score", "")
        keys = []
        for prompt, options in zip(prompts, choices):
            digest = _extend(base, canonical_json(prompt))
            keys.append([_key(digest, choice) for choice in options])
        known = self._look_up([key for row in keys for key in row])
        missing: dict[int, dict[bytes, str]] = {}  # prompt -> key -> choice
        seen: set[bytes] = set()
        for number, (row, options) in enumerate(zip(keys, choices)):
            for key, choice in zip(row, options):
                if key not in known and key not in seen:
                    seen.add(key)
                    missing.setdefault(number, {})[key] = choice
        read = np.zeros(len(prompts), np.int64)
        if missing:
            self._check_may_ask(prompts, missing)
            fresh, tokens_read = self._ask_scores(prompts, missing)
            known |= fresh
            read[list(missing)] = tokens_read
        pairs = [[SCORE.unpack(known[key]) for key in row] for row in keys]
        return Scores(
            pad_rows([[logprob for logprob, _ in row] for row in pairs], -np.inf, np.float64),
            pad_rows([[tokens for _, tokens in row] for row in pairs], 0, np.int64),
            read,
        )

    def _ask_scores(
        self, prompts: Sequence[Prompt], missing: dict[int, dict[bytes, str]]
    ) -> tuple[dict[bytes, bytes], np.ndarray]:
        numbers = list(missing)
        found = self.inner.scores([prompts[i] for i in numbers], [list(missing[i].values()) for i in numbers])
        self._sample(
            [prompts[i] for i in numbers],
            lambda row: {"choices": [*missing[numbers[row]].values()], "logprobs": found.logprobs[row].tolist()},
        )
        answers = {
            key: SCORE.pack(float(found.logprobs[row, place]), int(found.tokens[row, place]))
            for row, number in enumerate(numbers)
            for place, key in enumerate(missing[number])
        }
        return self._put(answers), found.tokens_read

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        base = self._base("embed", "")
        keys = [_key(base, canonical_json(prompt)) for prompt in prompts]
        known = self._look_up(keys)
        missing = {key: number for number, key in enumerate(keys) if key not in known}
        if missing:
            self._check_may_ask(prompts, list(missing.values()))
            found = self.inner.embed([prompts[i] for i in missing.values()])
            known |= self._put({key: np.asarray(row, "<f4").tobytes() for key, row in zip(missing, found)})
        return np.array([np.frombuffer(known[key], "<f4") for key in keys], np.float32)

    def close(self) -> None:
        self.store.close()
        super().close()

    # Keys and answers ---------------------------------------------------------------------------------

    def _base(self, method: str, parameters: str) -> Any:
        digest = hashlib.blake2b(digest_size=20)
        for part in (str(SCHEMA), method, self.inner.identity, parameters):
            _feed(digest, part)
        return digest

    def _look_up(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """Return the stored answers; none in mode `record`."""
        if self.settings.mode == "record":
            known: dict[bytes, bytes] = {}
        else:
            memory = self.memory  # another thread may begin a new one meanwhile
            known = {key: memory[key] for key in keys if key in memory}
            stored = self._select([key for key in dict.fromkeys(keys) if key not in known])
            self._remember(stored)
            known |= stored
        hits = sum(key in known for key in keys)
        self.usage.add(cache_hits=hits, cache_misses=len(keys) - hits)
        return known

    def _select(self, keys: list[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        with self.store.reading() as connection:
            for begin in range(0, len(keys), KEYS_PER_QUERY):
                part = keys[begin : begin + KEYS_PER_QUERY]
                marks = ",".join("?" * len(part))
                found |= dict(connection.execute(f"select key, value from answers where key in ({marks})", part))
        return found

    def _check_may_ask(self, prompts: Sequence[Prompt], numbers: Any) -> None:
        if self.settings.mode == "replay-only":
            example = canonical_json(prompts[next(iter(numbers))])[-60:]
            raise NotRecorded(
                f"cache.mode=replay-only: '{self.settings.path}' lacks answers for {len(numbers)} prompts, "
                f"such as …{example}; set cache.mode=replay to ask the model"
            )

    def _put(self, answers: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Store answers and return those that are valid: where another process was first, its answer."""
        conflict = "replace" if self.settings.mode == "record" else "ignore"
        if answers:
            with self.store.transaction() as connection:
                connection.executemany(f"insert or {conflict} into answers values (?, ?)", answers.items())
                answers = self._select(list(answers))
            self._remember(answers)
        return answers

    def _sample(self, prompts: Sequence[Prompt], answer: Callable[[int], dict[str, Any]]) -> None:
        """Store the words of those requests whose number is a power of two."""
        if not self.keep_samples:
            return
        kept = []
        for row, prompt in enumerate(prompts):
            self.asked += 1
            if self.asked & (self.asked - 1) == 0:
                words = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
                kept.append((json.dumps({"prompt": words} | answer(row)),))
        if kept:
            with self.store.transaction() as connection:
                connection.executemany("insert into samples (value) values (?)", kept)

    def _remember(self, answers: dict[bytes, bytes]) -> None:
        if len(self.memory) + len(answers) > self.settings.memory_entries:
            self.memory = {}  # rare, and reading the file is fast
        if len(answers) <= self.settings.memory_entries:
            self.memory.update(answers)


def _feed(digest: Any, part: str) -> None:
    raw = part.encode()
    digest.update(struct.pack("<q", len(raw)))  # so that different requests cannot have the same bytes
    digest.update(raw)


def _extend(base: Any, part: str) -> Any:
    digest = base.copy()
    _feed(digest, part)
    return digest


def _key(base: Any, part: str) -> bytes:
    key: bytes = _extend(base, part).digest()
    return key


def _completion(value: bytes) -> Completion:
    raw = json.loads(value)
    return Completion(**raw | {"tokens": tuple(raw["tokens"]), "logprobs": tuple(raw["logprobs"])})


def _consecutive(places: Sequence[int]) -> list[list[int]]:
    """Split increasing numbers into runs of consecutive ones: [0, 1, 4] becomes [0, 1] and [4]."""
    found: list[list[int]] = []
    for place in places:
        if found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found
