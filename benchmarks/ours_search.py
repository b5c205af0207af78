"""Our own tree search on Connect Four; prints one JSON line. See `make bench-search`."""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from coterie.nn import kernels
from coterie.nn.threads import fixed_threads
from coterie.policies.search.networks import PositionNetwork, PositionNetworkSettings
from coterie.policies.search.policy import SearchSettings, make_search
from coterie.policies.search.search import RootNoiseSettings, Search
from coterie.worlds.boards.connect_four import GAME


def positions_after(moves: int, copies: int, seed: int) -> np.ndarray:
    """Positions after some random moves."""
    random, found = np.random.default_rng(seed), np.tile(GAME.start, (copies, 1))
    for _ in range(moves):
        GAME.apply(found, random.integers(0, GAME.actions, copies))
    return found


def simulations_per_second(search: Search, copies: int, simulations: int, seconds: float, seed: int) -> float:
    """Search the same positions again and again."""
    positions, random = positions_after(4, copies, seed), np.random.default_rng(0)
    trees, rows = search.trees(copies, simulations), np.arange(copies)
    legal, budget = GAME.legal(positions), np.full(copies, simulations)
    search.run(trees, search.roots(legal, budget, random, RootNoiseSettings()), positions, rows, random)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        search.run(trees, search.roots(legal, budget, random, RootNoiseSettings()), positions, rows, random)
        done += copies * simulations
    return done / (time.perf_counter() - begin)


def network_seconds(network: PositionNetwork, rows: int) -> float:
    """Seconds of the network alone for one position, in batches of `rows`."""
    x = np.zeros((rows, int(np.prod(GAME.observation.shape))), np.float32)
    net, batches, begin = network.perceptron, 0, time.perf_counter()
    store = None if net is None else np.zeros(rows * int(net.sizes[1:].sum()), np.float32)
    while batches == 0 or time.perf_counter() - begin < 1.0:
        if net is None or store is None:
            network.evaluate(x)
        else:
            kernels.forward(net.flat, net.sizes, net.relu, x, store)
        batches += 1
        if batches == 1:
            begin = time.perf_counter()  # the first call warms up
    return (time.perf_counter() - begin) / max(batches - 1, 1) / rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=("puct", "gumbel"), default="puct")
    parser.add_argument("--network", choices=("mlp", "residual", "none"), default="mlp")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kind = PositionNetworkSettings(args.network, (args.width, args.width), channels=args.width, device="cpu")
    settings = SearchSettings(simulations=args.simulations, method=args.method, network=kind)
    with fixed_threads(1):
        network = None if args.network == "none" else PositionNetwork(kind, GAME, 0)
        search = make_search(settings, GAME, network)
        speed = simulations_per_second(search, args.batch, args.simulations, args.seconds, args.seed)
        block = args.batch if args.network == "residual" else min(args.batch, 64)
        share = 0.0 if network is None else network_seconds(network, block) * speed
    figures = {"simulations_per_second": speed, "network_share": share}
    print(json.dumps(figures | {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
