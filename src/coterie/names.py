"""The literal name tables: what a config may name, and where it lives.

Everything is `module:Class`, imported when it is first asked for; one's own things are named the same way
in a config. A class takes its settings, a frozen dataclass, as the constructor's first parameter.
"""

from __future__ import annotations

import importlib
import typing
from typing import Any

WORLDS = {
    "gridworld": "coterie.worlds.gridworld:Gridworld",
    "tictactoe": "coterie.worlds.tictactoe:Tictactoe",
}
POLICIES = {
    "network": "coterie.policies.network:NetworkPolicy",
    "random": "coterie.policies.scripted:RandomPolicy",
    "heuristic": "coterie.policies.scripted:HeuristicPolicy",
}
LEARNERS = {
    "ppo": "coterie.algorithms.ppo:PPO",
}
PREFERENCES = {
    "unchanged": "coterie.preferences:Unchanged",
    "team": "coterie.preferences:Team",
}


def look_up(table: dict[str, str], name: str) -> Any:
    """The class behind a name, or behind `package.module:Name`."""
    address = table.get(name, name)
    if ":" not in address:
        raise LookupError(f"no '{name}' here (known: {', '.join(table)}; one's own: package.module:Name)")
    module, _, attribute = address.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise LookupError(f"'{name}' needs the module '{error.name}', which is not installed") from None
    except AttributeError:
        raise LookupError(f"module '{module}' has no '{attribute}'") from None


def settings_type(table: dict[str, str], name: str) -> type[Any]:
    """The settings dataclass that a named class takes."""
    hints = typing.get_type_hints(look_up(table, name).__init__)
    if "settings" not in hints:
        raise LookupError(f"'{name}': its constructor has no annotated 'settings' parameter")
    found: type[Any] = hints["settings"]
    return found
