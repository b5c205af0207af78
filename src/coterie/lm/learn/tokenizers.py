"""Tokenizers of models that are trained here: characters for small ones from scratch, a pretrained model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
END, UNKNOWN = 0, 1
FIRST = 2  # id of the first character


class Tokenizer(Protocol):
    """Texts to token ids and back."""

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without tokens of their own that mark the start."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        ...


class CharacterTokenizer:
    """One token per printable ASCII character or line break, one for everything else, one that ends an answer."""

    size = FIRST + len(CHARACTERS)
    end = END

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts."""
        return [
            [FIRST + found if (found := CHARACTERS.find(letter)) >= 0 else UNKNOWN for letter in text] for text in texts
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; the end token is left out."""
        return "".join(
            "" if token == END else "\N{REPLACEMENT CHARACTER}" if token == UNKNOWN else CHARACTERS[token - FIRST]
            for token in tokens
        )


class PretrainedTokenizer:
    """The tokenizer of a pretrained model."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("its tokenizer has no token that ends an answer; name an eos_token in its configuration")
        self.tokenizer, self.end = tokenizer, int(tokenizer.eos_token_id)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
