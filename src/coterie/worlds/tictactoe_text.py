"""Tic-tac-toe in words: whose stones lie where, and where a line can be completed."""

from __future__ import annotations

import numpy as np

from coterie.types import Array, Tree
from coterie.world import World
from coterie.worlds.tictactoe import LINES

CELLS = (
    *("top left", "top middle", "top right", "middle left", "centre", "middle right"),
    *("bottom left", "bottom middle", "bottom right"),
)


class TictactoeText:
    """What players are told, and what they may answer."""

    prompt = "tictactoe"
    choices = CELLS
    idle = None

    def __init__(self, world: World, kind: str) -> None:
        """All boards read alike."""

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        return [tell(row[:9] > 0, row[9:] > 0) for row in observation]

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """Each cell once as the place that completes a line, and once as the opponent's."""
        told = []
        for cell in range(9):
            line = next(line for line in LINES if cell in line)
            two = np.isin(np.arange(9), line) & (np.arange(9) != cell)
            other = np.zeros(9, bool)
            other[np.flatnonzero(~np.isin(np.arange(9), line))[:2]] = True
            told += [tell(two, other), tell(other, two)]
        return told


def tell(own: Array, others: Array) -> str:
    """One board as its player sees it, boards as [9] bool."""
    signs = ["X" if mine else "O" if theirs else "." for mine, theirs in zip(own, others, strict=True)]
    board = " / ".join("".join(signs[row : row + 3]) for row in (0, 3, 6))
    told = f"You are X: {board}."
    for stones, rest, words in ((own, others, "X wins at"), (others, own, "O threatens")):
        cells = [CELLS[c] for c in _completing(stones, rest)]
        told += f" {words} {' and '.join(cells)}." if cells else ""
    return told if "win" in told or "threat" in told else f"{told} Free: {', '.join(_free(own | others))}."


def _completing(stones: Array, others: Array) -> list[int]:
    """Free cells that give three in a row."""
    found = {int(line[~stones[line]][0]) for line in LINES if stones[line].sum() == 2 and not others[line].any()}
    return sorted(found)


def _free(taken: Array) -> list[str]:
    """Free cells, the centre and the corners first."""
    return [CELLS[cell] for cell in (4, 0, 2, 6, 8, 1, 3, 5, 7) if not taken[cell]]
