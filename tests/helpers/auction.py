"""Auctions set up by hand, for several test files."""

import numpy as np

from coterie.worlds.auction.valuations import Valuations, ValuationSettings
from coterie.worlds.auction.world import Auction, AuctionSettings

POINTS = ValuationSettings("points", points=(0.2, 0.6, 1.0), weights=(2, 1, 1))
VARIANTS = [
    {},
    {"bid_levels": 11},
    {"rule": "second_price", "reserve": 0.3, "num_bidders": 4},
    {"rule": "all_pay", "rounds": 3},
    {"rounds": 5, "budget": 0.7, "num_bidders": 3},
    {"valuations": POINTS, "bid_levels": 3, "rounds": 2},
    {"valuations": ValuationSettings("beta"), "budget": 0.4},
]


def auction(values, **settings):
    """One copy whose bidders have these valuations."""
    world = Auction(AuctionSettings(num_bidders=len(values), **settings), 1)
    value(world, values)
    return world


def value(world, values):
    state = world.save()
    state["valuation"][:] = values
    return world.load(state)


def bid(world, *bids):
    """Hold a round in every copy with the same bids; the ticks."""
    return world.step({"bidder": np.broadcast_to(np.array(bids, np.float32)[:, None], (world.num_envs, len(bids), 1))})


def uniform_valuations():
    """The uniform distribution on [0, 1] of the textbooks."""
    return Valuations(np.array([0.0, 1.0]), np.array([0.0, 1.0]), False)
