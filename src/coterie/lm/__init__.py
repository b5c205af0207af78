"""One interface to language models: complete, score and embed batches of prompts. See `docs/guides/lm.md`.

Names are imported on first use, so that `import coterie.lm` stays cheap and needs no optional package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.lm.ask.interface import Completion, LanguageModel, LMError, Prompt, Sampling, Scores
    from coterie.lm.ask.loading import LMSettings, LoadedModel, load

_MODULES = {
    **dict.fromkeys(("LMSettings", "LoadedModel", "load"), "coterie.lm.ask.loading"),
    **dict.fromkeys(
        ("Completion", "LanguageModel", "LMError", "Prompt", "Sampling", "Scores"), "coterie.lm.ask.interface"
    ),
}
__all__ = [
    "Completion",
    "LMError",
    "LMSettings",
    "LanguageModel",
    "LoadedModel",
    "Prompt",
    "Sampling",
    "Scores",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'coterie.lm' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
