"""Sealed-bid auctions and their theory."""

from coterie.worlds.auction.world import Auction, AuctionSettings, parallel_env

__all__ = ["Auction", "AuctionSettings", "parallel_env"]
