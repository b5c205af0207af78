"""From a name to a language model with everything around it.

The order, from outside: cache (what is known is free), spread (a server gets single questions; a second
cache keeps each answer as it comes), budget (reserves before anything is asked), retry, metering, back end.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.core import lookup
from coterie.lm.backends import embedded, minilm
from coterie.lm.backends.http import Http, HttpSettings
from coterie.lm.backends.llamacpp import LlamaCpp, LlamaCppSettings
from coterie.lm.backends.local_settings import LocalSettings
from coterie.lm.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Sampling,
    Scores,
    check_choices,
    check_installed,
)
from coterie.lm.wrappers.budget import Budget, BudgetSettings
from coterie.lm.wrappers.cache import Cache, CacheSettings
from coterie.lm.wrappers.concurrency import Spread, joined
from coterie.lm.wrappers.retry import Retry, RetrySettings
from coterie.lm.wrappers.sqlite import Store
from coterie.lm.wrappers.usage import Ledger, Metered

Backend = Literal["auto", "local", "encoder", "llamacpp", "http"]
NAMES = ("embedded", "minilm")  # of what comes along


@dataclass(frozen=True)
class LMSettings:
    """A language model and what stands around it."""

    name: str = "embedded"  # embedded, minilm, a directory, a GGUF file, http://…, package.module:name, or a hub's name
    backend: Backend = "auto"  # auto: by the name; encoder: vectors only; llamacpp: GGUF through llama.cpp
    cache: CacheSettings | None = None  # where answers are kept; none: nowhere
    budget: BudgetSettings | None = None  # what may be spent; none: no limit
    retry: RetrySettings = field(default_factory=RetrySettings)  # asking a server again
    http: HttpSettings = field(default_factory=HttpSettings)  # a server's model, key and limits
    local: LocalSettings = field(default_factory=LocalSettings)  # device, precision, batches
    llamacpp: LlamaCppSettings = field(default_factory=LlamaCppSettings)  # context, threads


class LoadedModel(LanguageModel):
    """What `load` gives: asks the outermost layer, and keeps the others at hand."""

    def __init__(self, outer: LanguageModel, backend: LanguageModel, ledger: Ledger, budget: Budget | None) -> None:
        self.outer, self.backend, self.ledger, self.budget = outer, backend, ledger, budget

    @property
    def identity(self) -> str:
        return self.outer.identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        if isinstance(prompts, str):
            raise ValueError("prompts must be a list, not one text")
        if n < 1 or first < 0:
            raise ValueError(f"n must be at least 1 and first at least 0, got {n} and {first}")
        return self.outer.complete(prompts, n, sampling, first) if prompts else []

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        return self.outer.scores(prompts, choices) if prompts else joined([])

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return self.outer.embed(prompts) if prompts else np.zeros((0, 0), np.float32)

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.outer.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.outer.close()

    def metrics(self) -> dict[str, float]:
        """Calls, tokens, seconds, hits, refusals and retries so far, for metrics.jsonl."""
        return self.ledger.metrics()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"ledger": self.ledger.state(), "budget": self.budget.state() if self.budget else None}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.ledger.load(state["ledger"])
        if self.budget and state["budget"]:
            self.budget.load(state["budget"])


def load(
    spec: str | LMSettings = "embedded", cache: str | Path | CacheSettings | None = None, **changes: Any
) -> LoadedModel:
    """A language model by name or by settings; `changes` are fields of `LMSettings`."""
    settings = spec if isinstance(spec, LMSettings) else LMSettings(spec)
    if cache is not None:
        changes["cache"] = cache if isinstance(cache, CacheSettings) else CacheSettings(str(cache))
    settings = dataclasses.replace(settings, **changes)
    return surround(open_backend(settings), settings)


def surround(backend: LanguageModel, settings: LMSettings) -> LoadedModel:
    """Put cache, budget, retry and ledger around a back end."""
    ledger = Ledger()
    store = Store(settings.cache.path) if settings.cache else None
    layer: LanguageModel = Metered(backend, ledger)
    retry: Retry | None = None
    budget: Budget | None = None
    if isinstance(backend, Http):
        layer = retry = Retry(layer, settings.retry, ledger)
    if settings.budget:
        tries = (retry.attempts, retry.lost) if retry else ()
        layer = budget = Budget(layer, settings.budget, store, ledger, *tries)
    if isinstance(backend, Http):
        if settings.cache:  # within: every answer is kept as it comes, before the whole batch is there
            layer = Cache(layer, dataclasses.replace(settings.cache, in_memory=0), store)
        layer = Spread(layer, settings.http.at_once)
    if settings.cache:
        layer = Cache(layer, settings.cache, store, ledger)
    return LoadedModel(layer, backend, ledger, budget)


def open_backend(settings: LMSettings) -> LanguageModel:
    """What answers, by name."""
    name, backend = settings.name, backend_of(settings)
    if backend == "http":
        return Http(name, settings.http)
    if backend == "own":
        return _own(name)
    if backend == "llamacpp":
        return LlamaCpp(_gguf(name), settings.llamacpp, f"gguf {embedded.SHA256}" if name == "embedded" else "")
    if backend == "encoder":
        from coterie.lm.backends.sentences import Sentences

        if name == "minilm":
            return Sentences.open(minilm.folder(), settings.local, f"minilm {minilm.SHA256['model.safetensors']}")
        return Sentences.open(name, settings.local)
    from coterie.lm.backends.local import Local

    if name == "embedded":
        return Local.open(embedded.folder(), settings.local, f"gguf {embedded.SHA256}")
    return Local.open(name, settings.local)


def check_model(settings: LMSettings) -> None:
    """Refuse a name that leads to no model, with the words of `load`, before any weights are read."""
    name, backend = settings.name, backend_of(settings)
    if backend == "http":
        Http(name, settings.http).close()  # nothing is asked
    elif backend == "own":
        _look_up(name)
    elif backend == "llamacpp":
        check_installed("xllamacpp", "server")
        if name != "embedded" and not _gguf(name).is_file():
            raise Missing(f"there is no file '{name}'")
    else:
        check_installed("transformers", "lm")
        if name != ("minilm" if backend == "encoder" else "embedded"):
            from coterie.lm.backends.local import check_source

            check_source(name, "encoder" if backend == "encoder" else "model")


def backend_of(settings: LMSettings) -> str:
    """Which back end a name asks for."""
    name = settings.name
    if settings.backend not in typing.get_args(Backend):
        raise ValueError(f"backend must be auto, local, encoder, llamacpp or http, got {settings.backend!r}")
    if settings.backend != "auto":
        return settings.backend
    if name.startswith(("http://", "https://")):
        return "http"
    if name == "minilm":
        return "encoder"
    if ":" in name and not Path(name).exists():
        return "own"
    return "local"


def _gguf(name: str) -> Path:
    path = embedded.gguf_file() if name == "embedded" else Path(name)
    if path.suffix != ".gguf":
        raise Missing(f"backend llamacpp needs 'embedded' or a GGUF file, got '{name}'")
    return path


def _own(name: str) -> LanguageModel:
    """One's own back end: `package.module:Name`, a LanguageModel or what makes one."""
    found = _look_up(name)
    made = found if isinstance(found, LanguageModel) else found()
    if not isinstance(made, LanguageModel):
        raise Missing(f"'{name}' gives no LanguageModel, but {type(made).__name__}")
    return made


def _look_up(name: str) -> Any:
    try:
        return lookup.look_up({}, name)
    except LookupError as error:
        raise Missing(str(error)) from None
