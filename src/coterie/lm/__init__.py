"""One interface to language models: complete, score, embed. `docs/lm.md` describes it.

Names are imported when first used; what a back end needs beyond that is imported by the back end alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.lm.interface import Completion, LanguageModel, LMError, Prompt, Sampling, Scores
    from coterie.lm.load import LMSettings, LoadedModel, load

_HOMES = {
    **dict.fromkeys(("LMSettings", "LoadedModel", "load"), "coterie.lm.load"),
    **dict.fromkeys(("Completion", "LanguageModel", "LMError", "Prompt", "Sampling", "Scores"), "coterie.lm.interface"),
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
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie.lm' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
