"""Wins, draws and losses of zero-sum games, and the Elo difference that they imply."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coterie.studies.match.match import Pairing


@dataclass(frozen=True)
class Tally:
    """Wins, draws and losses of the first side."""

    wins: int
    draws: int
    losses: int

    @property
    def score(self) -> float:
        """Points per game: a win counts 1, a draw ½."""
        return (self.wins + self.draws / 2) / (self.wins + self.draws + self.losses)

    @property
    def elo(self) -> float:
        """The Elo difference 400 · log₁₀(s / (1 − s)) of the score s; a bound where every game was won or lost.

        There, half a game is given to the side that has none.
        """
        least = 0.5 / (self.wins + self.draws + self.losses)
        score = min(max(self.score, least), 1 - least)
        return 400 * math.log10(score / (1 - score))

    def cells(self) -> list[str]:
        """Wins, draws, losses and the Elo difference as words; `>` or `<` marks a bound."""
        bound = ">" if self.score == 1 else "<" if self.score == 0 else ""
        return [str(self.wins), str(self.draws), str(self.losses), f"{bound}{self.elo:+.0f}"]


def tally(entry: Pairing) -> Tally | None:
    """The tally of a pairing; None unless the returns of both sides sum to zero in every episode."""
    if entry.second.size == 0 or not np.allclose(entry.first + entry.second, 0):
        return None
    return Tally(int((entry.first > 0).sum()), int((entry.first == 0).sum()), int((entry.first < 0).sum()))
