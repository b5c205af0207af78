"""Sealed-bid auctions: the world, its theory, and metrics of trained bidders."""

from coterie.worlds.auction.world import Auction, AuctionSettings, parallel_env

__all__ = ["Auction", "AuctionSettings", "parallel_env"]
