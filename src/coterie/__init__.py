"""Coterie: multi-agent reinforcement learning in which any kind of agent sits at the same table.

Names are imported when first used, so that `import coterie` and `coterie --help` are quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import worlds
    from coterie.api import Table, clone, compare, load, match, report, resume, sweep, train
    from coterie.studies.exploit.deviations import ExploitSpec
    from coterie.studies.exploit.exploit import exploit
    from coterie.studies.exploit.results import ExploitResult

__version__ = "0.4.0"
__all__ = [
    "ExploitResult",
    "ExploitSpec",
    "Table",
    "clone",
    "compare",
    "exploit",
    "load",
    "match",
    "report",
    "resume",
    "sweep",
    "train",
    "worlds",
]


def __getattr__(name: str) -> Any:
    api = ("Table", "clone", "compare", "load", "match", "report", "resume", "sweep", "train")
    homes = dict.fromkeys(api, "coterie.api")
    homes |= {
        "ExploitResult": "coterie.studies.exploit.results",
        "ExploitSpec": "coterie.studies.exploit.deviations",
        "exploit": "coterie.studies.exploit.exploit",
    }
    if name in homes:
        value = getattr(importlib.import_module(homes[name]), name)
        globals()[name] = value
        return value
    if name == "worlds":
        return importlib.import_module("coterie.worlds")
    raise AttributeError(f"module 'coterie' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
