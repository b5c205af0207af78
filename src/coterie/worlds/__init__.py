"""Built-in worlds, imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.worlds import auction, doorkey, gridworld
    from coterie.worlds.boards import connect_four, othello, tictactoe
    from coterie.worlds.tasks import plan_path, sokoban, sudoku
    from coterie.worlds.tasks.code import task as code
    from coterie.worlds.tasks.mathematics import task as math

_HOMES = {
    "auction": "coterie.worlds.auction",
    "code": "coterie.worlds.tasks.code.task",
    "connect_four": "coterie.worlds.boards.connect_four",
    "doorkey": "coterie.worlds.doorkey",
    "gridworld": "coterie.worlds.gridworld",
    "math": "coterie.worlds.tasks.mathematics.task",
    "othello": "coterie.worlds.boards.othello",
    "plan_path": "coterie.worlds.tasks.plan_path",
    "sokoban": "coterie.worlds.tasks.sokoban",
    "sudoku": "coterie.worlds.tasks.sudoku",
    "tictactoe": "coterie.worlds.boards.tictactoe",
}
__all__ = [
    "auction",
    "code",
    "connect_four",
    "doorkey",
    "gridworld",
    "math",
    "othello",
    "plan_path",
    "sokoban",
    "sudoku",
    "tictactoe",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(_HOMES[name])
    raise AttributeError(f"module 'coterie.worlds' has no attribute '{name}'")
