"""Players of board games that look ahead: `alphabeta` to a depth, `minimax` to the end.

They know the rules (the world's `game`), not how to play: at the horizon the game's `estimate` counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.alphabeta import best_actions
from coterie.core.game import Game, HasGame
from coterie.core.group import GroupSpec, Policy
from coterie.core.settings import Settings
from coterie.core.types import Array, Decision, View
from coterie.core.validation import at_least

MINIMAX_MOVES = 12  # `minimax` plays games that are not longer


@dataclass(frozen=True)
class AlphabetaSettings(Settings):
    """Settings of alpha-beta search to a depth."""

    depth: int = 4  # moves to look ahead
    ties: Literal["random", "first"] = "random"  # among moves of equal value: draw one, or take the first

    def __post_init__(self) -> None:
        at_least("depth", self.depth, 1)


class AlphabetaPolicy(Policy):
    """Alpha-beta search with the game's estimate at the horizon; sooner wins come first."""

    needs = HasGame

    def __init__(self, settings: AlphabetaSettings, group_spec: GroupSpec) -> None:
        self.name, self.settings = "alphabeta", settings
        _compiled(self.name, group_spec)

    def act(self, view: View) -> Decision:
        return _act(self.name, self.settings.depth, self.settings.ties, view)


@dataclass(frozen=True)
class MinimaxSettings(Settings):
    """Settings of search to the end of the game."""

    ties: Literal["random", "first"] = "random"  # among moves of equal value: draw one, or take the first


class MinimaxPolicy(Policy):
    """Plays perfectly: looks ahead to the end of the game. For games of at most 12 moves."""

    needs = HasGame

    def __init__(self, settings: MinimaxSettings, group_spec: GroupSpec) -> None:
        self.name, self.settings = "minimax", settings
        game = _compiled(self.name, group_spec)
        if game.max_moves > MINIMAX_MOVES:
            raise ValueError(
                f"policy 'minimax' looks ahead to the end and plays games of at most {MINIMAX_MOVES} moves; "
                f"'{game.name}' may last {game.max_moves}; use 'alphabeta' with a depth"
            )
        self.depth = game.max_moves

    def act(self, view: View) -> Decision:
        return _act(self.name, self.depth, self.settings.ties, view)


def _compiled(name: str, group_spec: GroupSpec) -> Game:
    """The game of the group's world; a ValueError if there is none that can be searched."""
    if not isinstance(group_spec.world, HasGame):
        raise ValueError(f"policy '{name}' needs a world with a game that can be searched")
    game = group_spec.world.game
    if game.rules is None:
        raise ValueError(f"policy '{name}' needs a game with compiled rules; '{game.name}' has none")
    return game


def _act(name: str, depth: int, ties: str, view: View) -> Decision:
    """Search where one of the group's agents is to move."""
    if not isinstance(view.world, HasGame) or view.columns is None:
        raise ValueError(f"policy '{name}' needs the state of the world; it cannot act on observations alone")
    game, positions = view.world.game, view.world.positions()
    # Every environment uses one random number, needed or not, so that games do not influence each other.
    chance = view.random.random(len(positions)) if ties == "random" else np.zeros(len(positions))
    action = np.zeros(view.acting.shape, np.int64)
    for agent in range(action.shape[1]):
        rows = np.flatnonzero(view.acting[:, agent])
        allowed: Array = game.legal(positions[rows])
        if view.mask is not None:
            allowed &= view.mask[rows, agent]
        action[rows, agent] = best_actions(game, positions[rows], depth, allowed, chance[rows])
    return Decision(action)
