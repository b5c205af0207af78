"""Pretrained models as transformers of our own, with their tokenizers, to be trained as writers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

from coterie.lm.backends.local import Local
from coterie.lm.backends.local_settings import LocalSettings
from coterie.lm.loading import LMSettings, shared_backend
from coterie.lm.transformer import Transformer, from_hugging_face


class Tokenizer(Protocol):
    """Texts to token ids and back."""

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without tokens of its own that mark the start."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        ...


class PretrainedTokenizer:
    """The tokenizer of a pretrained model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.end = tokenizer, int(tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def load_pretrained(name: str, copies: int) -> tuple[list[Transformer], Tokenizer]:
    """Load a model by the names that `lm` settings take, so many times, and its tokenizer."""
    whole = LocalSettings(device="cpu", dtype="float32")  # weights to be trained are not rounded
    backend = shared_backend(LMSettings(name=name, local=whole))
    if not isinstance(backend, Local):
        raise ValueError(f"model: '{name}' is not a local model with weights, and cannot be trained")
    network = from_hugging_face(backend.model)
    return [network, *(copy.deepcopy(network) for _ in range(copies - 1))], PretrainedTokenizer(backend.tokenizer)
