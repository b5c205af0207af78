"""Settings of language models in this process, apart from the code that needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.validation import at_least, positive

DataType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class LocalSettings:
    """How a model is held in this process."""

    device: str = "auto"  # cpu, cuda, cuda:1, …; auto: cuda where there is one
    dtype: DataType = "auto"  # of the weights; auto: float32 on a CPU, bfloat16 elsewhere
    tokens_per_pass: int = 512  # scoring reads about this many new tokens at a time
    rows: int = 64  # completions that grow side by side
    prefixes: int = 4  # beginnings of prompts that stay read; 0: none

    def __post_init__(self) -> None:
        positive("tokens_per_pass", self.tokens_per_pass)
        positive("rows", self.rows)
        at_least("prefixes", self.prefixes, 0)
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype must be auto, float32, bfloat16 or float16, got {self.dtype!r}")
