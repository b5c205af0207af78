"""Settings of local language models, in a module that does not import PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from coterie.core.validation import at_least, positive

DataType = Literal["auto", "float32", "bfloat16", "float16"]
UseEngine = Literal["auto", "on", "off"]
DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d{1,3})?")


@dataclass(frozen=True)
class LocalSettings:
    """Device, precision and batch sizes of a model in this process."""

    device: str = "auto"  # cpu, cuda, cuda:1, …; auto: cuda if available
    dtype: DataType = "auto"  # of the weights; auto: float32 on a CPU, bfloat16 elsewhere
    max_batch_tokens: int = 512  # new tokens that scoring reads in one forward pass, about
    batch_size: int = 64  # completions or embeddings in one forward pass
    engine: UseEngine = "auto"  # the rollout engine for models of the Llama family; auto: on a GPU
    engine_rows: int = 256  # completions that the engine writes at once
    prefix_cache_size: int = 4  # prompt prefixes whose keys and values are kept; 0: none

    def __post_init__(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise ValueError(f"device must be auto, cpu, mps, cuda, xpu, or cuda:1 and so on, got {self.device!r}")
        positive("max_batch_tokens", self.max_batch_tokens)
        positive("batch_size", self.batch_size)
        at_least("prefix_cache_size", self.prefix_cache_size, 0)
        positive("engine_rows", self.engine_rows)
        if self.engine not in ("auto", "on", "off"):
            raise ValueError(f"engine must be auto, on or off, got {self.engine!r}")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype must be auto, float32, bfloat16 or float16, got {self.dtype!r}")
