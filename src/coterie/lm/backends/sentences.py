"""A sentence encoder in this process, through PyTorch: any Hugging Face encoder directory.

It turns texts into vectors and does nothing else: hidden states of the last layer, averaged over tokens and not over
padding, of length 1 (Reimers and Gurevych 2019, section 3). The model is open to training, as a causal one is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from coterie.lm.backends.local import check_source, device_of, digest_of, dtype_of, mean_over_tokens, quietly
from coterie.lm.backends.local_settings import LocalSettings
from coterie.lm.backends.prefix import fingerprint
from coterie.lm.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Rejected,
    Sampling,
    Scores,
    Unsupported,
    needs,
)


class Sentences(LanguageModel):
    """An encoder and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, settings: LocalSettings = LocalSettings(), source: str = "") -> None:
        self.settings, self.model, self.tokenizer = settings, model, tokenizer
        self.lock = threading.RLock()
        self.sources = {fingerprint(model): source} if source else {}  # state of the weights -> what they are

    @classmethod
    def open(cls, path: str | Path, settings: LocalSettings = LocalSettings(), source: str = "") -> Sentences:
        """A model directory, or a name that transformers can fetch by itself."""
        device = device_of(settings.device)
        check_source(str(path), "encoder")
        transformers = needs("transformers", "lm")
        try:
            with quietly(transformers):
                model = transformers.AutoModel.from_pretrained(str(path), dtype=dtype_of(settings.dtype, device))
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise Missing(f"'{path}' is no encoder's directory, nor one that can be fetched: {first}") from None
        return cls(model.to(device).eval(), tokenizer, settings, source)

    @property
    def identity(self) -> str:
        now = fingerprint(self.model)
        if now not in self.sources:
            self.sources = {now: digest_of(self.model, now[1])}
        return f"sentences {self.sources[now]} {str(self.model.dtype).removeprefix('torch.')}"

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        _only_vectors("completes")

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        _only_vectors("scores")

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        found = np.zeros((len(prompts), self.model.config.hidden_size), np.float32)
        tokens = [self.tokens_of(prompt) for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
        with self.lock, torch.inference_mode():
            for begin in range(0, len(order), self.settings.rows):
                part = order[begin : begin + self.settings.rows]
                found[part] = self._vectors([tokens[i] for i in part]).cpu().numpy()
        return found

    def vectors(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """[P, D] with gradients: what `embed` gives, in the mode that the model is in."""
        return self._vectors([self.tokens_of(prompt) for prompt in prompts])

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """Ids of a text, with those that the encoder wants around it."""
        if not isinstance(prompt, str):
            raise Unsupported("a sentence encoder has no chat template: give text instead of messages")
        ids: list[int] = self.tokenizer(prompt).input_ids
        most = self.model.config.max_position_embeddings
        if len(ids) > most:
            raise Rejected(f"a text of {len(ids)} tokens does not fit into the encoder's {most}: {prompt[:40]}…")
        return ids

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return len(self.tokens_of(prompt))

    def _vectors(self, tokens: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tokens))
        ids = torch.tensor([one + [0] * (width - len(one)) for one in tokens], device=self.model.device)
        mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in tokens], device=self.model.device)
        return mean_over_tokens(self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


def _only_vectors(verb: str) -> NoReturn:
    raise Unsupported(
        f"a sentence encoder {verb} nothing, it only embeds: set lm to embedded, or to another causal model"
    )
