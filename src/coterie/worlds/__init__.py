"""Built-in worlds, imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.worlds import auction, gridworld
    from coterie.worlds.boards import connect_four, othello, tictactoe
    from coterie.worlds.tasks import plan_path, sokoban, sudoku

_HOMES = {
    "auction": "coterie.worlds.auction",
    "connect_four": "coterie.worlds.boards.connect_four",
    "gridworld": "coterie.worlds.gridworld",
    "othello": "coterie.worlds.boards.othello",
    "plan_path": "coterie.worlds.tasks.plan_path",
    "sokoban": "coterie.worlds.tasks.sokoban",
    "sudoku": "coterie.worlds.tasks.sudoku",
    "tictactoe": "coterie.worlds.boards.tictactoe",
}
__all__ = ["auction", "connect_four", "gridworld", "othello", "plan_path", "sokoban", "sudoku", "tictactoe"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(_HOMES[name])
    raise AttributeError(f"module 'coterie.worlds' has no attribute '{name}'")
