"""A GGUF file through llama.cpp: faster than PyTorch for single completions on a CPU.

Runs llama.cpp's own server inside this process (package `xllamacpp`), on a loopback port with a random key, and sends
it requests as to any other server. The weights stay quantised, so log-probabilities differ slightly from those of the
same file in PyTorch.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.cores import usable_cores
from coterie.core.validation import at_least, positive
from coterie.lm.ask.http import Http, HttpSettings
from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Sampling,
    Scores,
    Unsupported,
    import_extra,
)


@dataclass(frozen=True)
class LlamaCppSettings:
    """Context size and threads of llama.cpp."""

    context: int = 4096  # largest number of tokens, prompt and completion together
    threads: int = 0  # 0: one per core

    def __post_init__(self) -> None:
        positive("context", self.context)
        at_least("threads", self.threads, 0)


class LlamaCpp(LanguageModel):
    """One model that serves one request at a time."""

    def __init__(self, path: str | Path, settings: LlamaCppSettings = LlamaCppSettings(), source: str = "") -> None:
        """`source` identifies the file; without it, its checksum does."""
        xllamacpp = import_extra("xllamacpp", "server")
        if not Path(path).is_file():
            raise Missing(f"there is no file '{path}'")
        key = secrets.token_hex(16)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = settings.context
        parameters.n_parallel = 1
        parameters.warmup = False
        parameters.verbosity = 0
        parameters.ui = False
        parameters.api_keys = [key]
        threads = settings.threads or usable_cores()
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(parameters)
        self.path, self.source, self.context = Path(path), source, settings.context
        self.address: str = f"{self.server.listening_address}/v1"
        self.http = Http(self.address, HttpSettings(timeout=600), key)

    @property
    def identity(self) -> str:
        if not self.source:
            with self.path.open("rb") as file:
                self.source = f"gguf {hashlib.file_digest(file, 'sha256').hexdigest()}"
        return f"llama.cpp {self.source} context={self.context}"  # the file holds tokenizer and chat template too

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return self.http.complete(prompts, n, sampling, first)

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        return self.http.scores(prompts, choices)

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        raise Unsupported("backend 'llamacpp' does not embed; use backend 'local'")

    def close(self) -> None:
        self.http.close()
        del self.server  # its destructor stops the server
