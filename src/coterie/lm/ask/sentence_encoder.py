"""A sentence encoder in this process, through PyTorch: any Hugging Face encoder directory.

It only embeds: hidden states of the last layer, averaged over tokens without padding, scaled to length 1 (Reimers and
Gurevych 2019, section 3). Its weights can be trained, as those of a causal model can.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Rejected,
    Sampling,
    Scores,
    Unsupported,
    import_extra,
)
from coterie.lm.ask.local import (
    SetupDigest,
    check_source,
    mean_pool,
    no_progress_bars,
    resolve_device,
    resolve_dtype,
    weights_digest,
)
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.ask.prefix_cache import fingerprint


class SentenceEncoder(LanguageModel):
    """An encoder and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, settings: LocalSettings = LocalSettings(), source: str = "") -> None:
        """`source` identifies the weights as they are now; without it, and after training, their digest does."""
        self.settings, self.model, self.tokenizer = settings, model, tokenizer
        self.setup = SetupDigest()
        self.lock = threading.RLock()
        self.sources = {fingerprint(model): source} if source else {}  # fingerprint of the weights -> source or digest

    @classmethod
    def open(cls, path: str | Path, settings: LocalSettings = LocalSettings(), source: str = "") -> SentenceEncoder:
        """Load a model directory, or a name that transformers can download."""
        device = resolve_device(settings.device)
        check_source(str(path), "encoder")
        transformers = import_extra("transformers", "lm")
        try:
            with no_progress_bars(transformers):
                model = transformers.AutoModel.from_pretrained(str(path), dtype=resolve_dtype(settings.dtype, device))
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise Missing(f"no encoder '{path}': transformers cannot load it: {first}") from None
        return cls(model.to(device).eval(), tokenizer, settings, source)

    @property
    def identity(self) -> str:
        now = fingerprint(self.model)
        if now not in self.sources:
            self.sources = {now: weights_digest(self.model, now[1])}
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"sentences {self.sources[now]} {dtype} {self.setup.digest(self.model, self.tokenizer)}"

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        raise _only_embeds("complete")

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        raise _only_embeds("score")

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        found = np.zeros((len(prompts), self.model.config.hidden_size), np.float32)
        tokens = [self.tokenize(prompt) for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
        with self.lock, torch.inference_mode():
            for begin in range(0, len(order), self.settings.batch_size):
                part = order[begin : begin + self.settings.batch_size]
                found[part] = self._vectors([tokens[i] for i in part]).cpu().numpy()
        return found

    def vectors(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Return embeddings `[P, D]` with gradients, in the current mode (train or eval) of the model."""
        return self._vectors([self.tokenize(prompt) for prompt in prompts])

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a text, special tokens included."""
        if not isinstance(prompt, str):
            raise Unsupported("a sentence encoder has no chat template: give text instead of messages")
        ids: list[int] = self.tokenizer(prompt).input_ids
        limit = self.model.config.max_position_embeddings
        if len(ids) > limit:
            raise Rejected(f"a text of {len(ids)} tokens exceeds the encoder's limit of {limit}: {prompt[:40]}…")
        return ids

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return len(self.tokenize(prompt))

    def _vectors(self, tokens: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tokens))
        ids = torch.tensor([one + [0] * (width - len(one)) for one in tokens], device=self.model.device)
        mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in tokens], device=self.model.device)
        return mean_pool(self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


def _only_embeds(verb: str) -> Unsupported:
    return Unsupported(
        f"a sentence encoder cannot {verb}, it only embeds: set lm to embedded, or to another causal model"
    )
