"""The auction in words: what the item is worth to a bidder, and bids as numbers in words.

Where any bid in [0, 1] is allowed, eleven of them are offered, equally far apart.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Tree
from coterie.worlds.auction.world import Auction

OFFERED = 11  # bids, where any number is allowed
RULES = {
    "first_price": "The highest bid wins and is paid.",
    "second_price": "The highest bid wins and pays the second highest bid.",
    "all_pay": "The highest bid wins and everybody pays.",
}


class AuctionText:
    """What bidders are told, and what they may answer."""

    prompt = "auction"
    idle = 0

    def __init__(self, world: Auction, agent_type: str) -> None:
        self.settings = world.settings
        self.bids = np.linspace(0, 1, self.settings.bid_levels or OFFERED)
        digits = 1 if len(self.bids) <= 11 and np.allclose(self.bids * 10, np.rint(self.bids * 10)) else 2
        if len(self.bids) > 101:
            raise ValueError(f"a language model reads at most 101 bids apart, got bid_levels={len(self.bids)}")
        self.choices = tuple(f"{bid:.{digits}f}" for bid in self.bids)

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        return [self.tell(row) for row in observation]

    def tell(self, row: Array) -> str:
        """One bidder's own valuation to two digits and, where there are several rounds, what it knows of them."""
        told = f"{RULES[self.settings.rule]} The item is worth {row[0]:.2f} to you."
        if self.settings.rounds > 1:
            played = round(float(row[1]) * self.settings.rounds)
            told += f" Round {played + 1} of {self.settings.rounds}."
            told += f" The last item went for {row[3]:.2f}." if row[2] > 0 else ""
        if self.settings.budget is not None and self.settings.rounds > 1:
            told += f" You have {row[5] * self.settings.budget:.2f} left."
        return told

    def actions(self, chosen: Array) -> Array:
        return chosen if self.settings.bid_levels else self.bids[chosen][:, None].astype(np.float32)

    def samples(self) -> list[str]:
        """Valuations from 0 to 1, in the first round."""
        width = 1 + (self.settings.rounds > 1) * (4 + (self.settings.budget is not None))
        rows = np.zeros((11, width))
        rows[:, 0], rows[:, 5:] = np.linspace(0, 1, 11), 1.0
        return self.describe(rows)
