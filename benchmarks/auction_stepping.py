"""How fast auctions are held on one core: 4 bidders, 1024 copies, every step an episode.

Prints one JSON line for each rule. Bids are drawn beforehand; compilation is not counted, new episodes are.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

from coterie.worlds.auction.world import RULES, Auction, AuctionSettings

COPIES, BIDDERS, STEPS, ROUNDS = 1024, 4, 500, 7


def measure(rule: str) -> dict[str, str | float]:
    """Bids per second, the median over rounds."""
    world = Auction(AuctionSettings(num_bidders=BIDDERS, rule=rule), COPIES)  # type: ignore[arg-type]  # a key of RULES
    bids = np.random.default_rng(0).random((STEPS, COPIES, BIDDERS, 1), dtype=np.float32)
    began = time.perf_counter()
    world.reset(0)
    world.step({"bidder": bids[0]})
    first = time.perf_counter() - began
    speeds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for bid in bids:
            world.step({"bidder": bid})
        speeds.append(bids.size / (time.perf_counter() - began))
    return {
        "benchmark": "auction_stepping",
        "rule": rule,
        "bids_per_second": round(statistics.median(speeds)),
        "slowest": round(min(speeds)),
        "fastest": round(max(speeds)),
        "rounds": ROUNDS,
        "copies": COPIES,
        "bidders": BIDDERS,
        "first_step_seconds": round(first, 2),  # includes compiling, or loading what was compiled before
    }


if __name__ == "__main__":
    for rule in RULES:
        print(json.dumps(measure(rule)))
