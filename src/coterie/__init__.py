"""Coterie: multi-agent reinforcement learning in which any kind of agent sits at the same table.

Names are imported when first used, so that `import coterie` and `coterie --help` are quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import worlds
    from coterie.api import Table, clone, compare, load, match, report, resume, sweep, train
    from coterie.core.group import ActionShield, Advisor, Learner, Policy, Preference, Risk
    from coterie.core.settings import Settings
    from coterie.core.world import World
    from coterie.studies.exploit.deviations import ExploitSpec
    from coterie.studies.exploit.exploit import exploit
    from coterie.studies.exploit.results import ExploitResult

__version__ = "0.4.0"
__all__ = [
    "ActionShield",
    "Advisor",
    "ExploitResult",
    "ExploitSpec",
    "Learner",
    "Policy",
    "Preference",
    "Risk",
    "Settings",
    "Table",
    "World",
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
    homes |= dict.fromkeys(("ActionShield", "Advisor", "Learner", "Policy", "Preference", "Risk"), "coterie.core.group")
    homes |= {
        "Settings": "coterie.core.settings",
        "World": "coterie.core.world",
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
