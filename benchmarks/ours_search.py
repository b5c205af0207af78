"""Our own tree search on Connect Four: simulations per second, and where the time goes; prints one JSON line.

    python benchmarks/ours_search.py [--method gumbel] [--network residual] [--batch 256]
    python benchmarks/ours_search.py --network residual --device cuda --precision bfloat16 --batch 2048 --threads 14

`network_share` is the time that the network alone needs for as many positions; on a GPU, where trees grow meanwhile,
the rest is the time in which it has nothing to do. `tree_share` and `python_share` are the times of the caller's thread
in compiled functions (without a perceptron's part, which runs inside them) and outside of them; what is missing is
waiting for the network. `--whole` evaluates all copies together instead of in two halves. See `make bench-search`.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import defaultdict
from typing import Any

import numpy as np

from coterie.nn import kernels
from coterie.nn.threads import fixed_threads
from coterie.policies.search import networks, tree
from coterie.policies.search import search as search_module
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


def time_calls(owner: Any, name: str, spent: dict[str, float], part: str) -> None:
    """Add up the seconds of all calls of a function."""
    called = getattr(owner, name)

    def timed(*args: Any) -> Any:
        begin = time.perf_counter()
        result = called(*args)
        spent[part] += time.perf_counter() - begin
        return result

    setattr(owner, name, timed)


def watch() -> dict[str, float]:
    """The seconds that searches spend in their parts, from now on."""
    spent: dict[str, float] = defaultdict(float)
    for name in ("search_all", "advance", "advance_in_parallel", "read_roots"):
        time_calls(tree, name, spent, "tree")
    for kind in (networks.Blocking, networks.EvaluationGraph):
        for name in ("start", "finish"):
            time_calls(kind, name, spent, "network")
    return spent


def measure(search: Search, copies: int, simulations: int, seconds: float, seed: int) -> tuple[int, float]:
    """Search the same positions again and again: how many simulations, in which time."""
    positions, random = positions_after(4, copies, seed), np.random.default_rng(0)
    trees, rows = search.trees(copies, simulations), np.arange(copies)
    legal, budget = GAME.legal(positions), np.full(copies, simulations)
    done, begin = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - begin < seconds:
        search.run(trees, search.roots(legal, budget, random, RootNoiseSettings()), positions, rows, random)
        done += copies * simulations
    return done, time.perf_counter() - begin


def network_seconds(network: PositionNetwork, rows: int) -> float:
    """Seconds of the network alone for one position, in batches of `rows`."""
    x = np.zeros((rows, int(np.prod(GAME.observation.shape))), np.float32)
    net, batches, begin = network.perceptron, 0, time.perf_counter()
    store = None if net is None else np.zeros(rows * int(net.sizes[1:].sum()), np.float32)
    while batches == 0 or time.perf_counter() - begin < 1.0:
        if net is not None and store is not None:
            kernels.forward(net.flat, net.sizes, net.relu, x, store)
        elif network.device.type == "cuda":
            graph = network.evaluation(rows, 0)
            graph.start(np.ones(rows, np.bool_))
            graph.finish()
        else:
            network.evaluate(x)
        batches += 1
        if batches == 1:
            begin = time.perf_counter()  # the first call warms up
    return (time.perf_counter() - begin) / max(batches - 1, 1) / rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=("puct", "gumbel"), default="puct")
    parser.add_argument("--network", choices=("mlp", "residual", "none"), default="mlp")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="no halves on a GPU")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.whole:
        search_module.halves = lambda copies: [(0, copies)]
    widths = {"hidden": (args.width, args.width), "channels": args.width}
    kind = PositionNetworkSettings(args.network, device=args.device, precision=args.precision, **widths)
    settings = SearchSettings(simulations=args.simulations, method=args.method, network=kind)
    with fixed_threads(args.threads):
        network = None if args.network == "none" else PositionNetwork(kind, GAME, 0)
        search = make_search(settings, GAME, network)
        measure(search, args.batch, args.simulations, 0, args.seed)  # compiles, captures, warms up
        spent, begin = watch(), time.process_time()
        done, elapsed = measure(search, args.batch, args.simulations, args.seconds, args.seed)
        cpu = time.process_time() - begin
        parts = dict(spent)  # before the network is timed by itself
        speed, alone, inside = done / elapsed, 0.0, 0.0
        if network is not None:
            block = min(args.batch, tree.BLOCK) if network.perceptron is not None else args.batch
            block = block if args.device == "cpu" or args.whole else (block + 1) // 2
            alone = network_seconds(network, block) * speed
            inside = alone if network.perceptron is not None else 0.0
    figures = {
        "simulations_per_second": speed,
        "simulations_per_cpu_second": done / cpu,
        "network_share": alone,
        "tree_share": parts["tree"] / elapsed - inside,
        "python_share": 1 - (parts["tree"] + parts.get("network", 0.0)) / elapsed,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
