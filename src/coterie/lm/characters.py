"""A tokenizer of characters, for small models that are trained from scratch."""

from __future__ import annotations

from collections.abc import Sequence

CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
END, UNKNOWN = 0, 1
FIRST = 2  # id of the first character


class CharacterTokenizer:
    """One token per printable ASCII character or line break, one for everything else, one that ends an answer."""

    size = FIRST + len(CHARACTERS)
    end = END

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return [FIRST + found if (found := CHARACTERS.find(letter)) >= 0 else UNKNOWN for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; the end token is left out."""
        return "".join(
            "" if token == END else "\N{REPLACEMENT CHARACTER}" if token == UNKNOWN else CHARACTERS[token - FIRST]
            for token in tokens
        )
