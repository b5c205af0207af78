"""Text codec of the auction: the valuation and the history as a sentence, bids as numbers.

Where any bid in [0, 1] is allowed, the codec offers eleven equally spaced ones.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Tree
from coterie.worlds.auction.world import Auction

NUM_BIDS = 11  # offered where any number is allowed
RULES = {
    "first_price": "The highest bid wins and is paid.",
    "second_price": "The highest bid wins and pays the second highest bid.",
    "all_pay": "The highest bid wins and everybody pays.",
}


class AuctionText:
    """Describes observations of a bidder; the choices are bids."""

    prompt = "auction"
    idle = 0

    def __init__(self, world: Auction, agent_type: str) -> None:
        self.settings = world.settings
        self.bids = np.linspace(0, 1, self.settings.bid_levels or NUM_BIDS)
        digits = 1 if len(self.bids) <= 11 and np.allclose(self.bids * 10, np.rint(self.bids * 10)) else 2
        if len(self.bids) > 101:
            raise ValueError(f"world.bid_levels: the text codec offers at most 101 bids, got {len(self.bids)}")
        self.choices = tuple(f"{bid:.{digits}f}" for bid in self.bids)

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        return [self.describe_row(row) for row in observation]

    def describe_row(self, row: Array) -> str:
        """A bidder's valuation and, with several rounds, the round, the last price and the budget left."""
        text = f"{RULES[self.settings.rule]} The item is worth {row[0]:.2f} to you."
        if self.settings.rounds > 1:
            played = round(float(row[1]) * self.settings.rounds)
            text += f" Round {played + 1} of {self.settings.rounds}."
            text += f" The last item went for {row[3]:.2f}." if row[2] > 0 else ""
        if self.settings.budget is not None and self.settings.rounds > 1:
            text += f" You have {row[5] * self.settings.budget:.2f} left."
        return text

    def actions(self, chosen: Array) -> Array:
        return chosen if self.settings.bid_levels else self.bids[chosen][:, None].astype(np.float32)

    def samples(self) -> list[str]:
        """Descriptions of the first round with valuations from 0 to 1."""
        width = 1 + (self.settings.rounds > 1) * (4 + (self.settings.budget is not None))
        rows = np.zeros((11, width))
        rows[:, 0], rows[:, 5:] = np.linspace(0, 1, 11), 1.0
        return self.describe(rows)
