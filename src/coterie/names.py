"""The literal name tables: what a config may name, and where it lives.

Everything is `module:Class`, imported when it is first asked for; one's own things are named the same way
in a config. A class takes its settings, a frozen dataclass, as the constructor's first parameter.
"""

from __future__ import annotations

import dataclasses
import importlib
import typing
from typing import Any

WORLDS = {
    "gridworld": "coterie.worlds.gridworld:Gridworld",
    "tictactoe": "coterie.worlds.tictactoe:Tictactoe",
    "spread": "coterie.worlds.mpe:Spread",
    "tag": "coterie.worlds.mpe:Tag",
    "auction": "coterie.worlds.auction:Auction",
    "gymnasium/": "coterie.worlds.gymnasium:GymnasiumWorld",
    "minigrid/": "coterie.worlds.gymnasium:MinigridWorld",
    "pettingzoo/": "coterie.worlds.pettingzoo:PettingzooWorld",
    "mpe/": "coterie.worlds.pettingzoo:MpeWorld",
}
POLICIES = {
    "network": "coterie.policies.network:NetworkPolicy",
    "q_network": "coterie.policies.q_network:QNetworkPolicy",
    "deterministic": "coterie.policies.deterministic:DeterministicPolicy",
    "random": "coterie.policies.scripted:RandomPolicy",
    "heuristic": "coterie.policies.scripted:HeuristicPolicy",
    "language": "coterie.policies.language:LanguagePolicy",
    "lora": "coterie.policies.lora:LoraPolicy",
}
CODECS = {  # by world: what tells its moments in words
    "gridworld": "coterie.worlds.gridworld_text:gridworld_text",
    "tictactoe": "coterie.worlds.tictactoe_text:TictactoeText",
    "spread": "coterie.worlds.mpe_text:MpeText",
    "tag": "coterie.worlds.mpe_text:MpeText",
    "auction": "coterie.worlds.auction_text:AuctionText",
    "gymnasium/": "coterie.worlds.gymnasium_text:GymnasiumText",
    "minigrid/": "coterie.worlds.minigrid_text:MinigridText",
}
SCRIPTED = ("random", "heuristic")  # policies that follow a rule
UNTRAINED = (*SCRIPTED, "language")  # policies that play without having been trained
LEARNERS = {
    "ppo": "coterie.algorithms.ppo:PPO",
    "dqn": "coterie.algorithms.dqn:DQN",
    "maddpg": "coterie.algorithms.maddpg:MADDPG",
}
ADVISORS = {
    "language": "coterie.roles.advisor:LanguageAdvisor",
    "heuristic": "coterie.roles.advisor:HeuristicAdvisor",
}
GUARDS = {
    "language": "coterie.roles.constraints:LanguageGuard",
}
PREFERENCES = {
    "unchanged": "coterie.preferences:Unchanged",
    "team": "coterie.preferences:Team",
    "cpt": "coterie.preferences:CPT",
    "cvar": "coterie.preferences:CVaR",
    "mean_variance": "coterie.preferences:MeanVariance",
    "rated": "coterie.roles.rated:Rated",
    "shaped": "coterie.roles.reward:Shaped",
    "preferred": "coterie.roles.bonus:Preferred",
    "instructed": "coterie.roles.bonus:Instructed",
}


def family(table: dict[str, str], name: str) -> tuple[str, str]:
    """Split `gymnasium/CartPole-v1` into the table's entry and what it is to load; '' for plain names."""
    head, slash, rest = name.partition("/")
    return (f"{head}/", rest) if slash and f"{head}/" in table else (name, "")


def look_up(table: dict[str, str], name: str) -> Any:
    """The class behind a name, or behind `package.module:Name`."""
    entry = family(table, name)[0]
    address = table.get(entry, entry)
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
    if not dataclasses.is_dataclass(found):
        raise LookupError(f"'{name}': its 'settings' must be annotated with a dataclass, not {found}")
    return found
