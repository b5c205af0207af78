"""Tree search on Connect Four against OpenSpiel, mctx and a tree as tutorials write it: simulations per second.

    python benchmarks/search.py --mctx PYTHON [--openspiel PYTHON] [--rounds 3] [--out FILE.json]
    python benchmarks/search.py --only "OpenSpiel Python" "ours puct, 256"      # some contestants

64 simulations per move with the same small perceptron: 84 inputs, two layers of 64, 7 logits and a value. OpenSpiel's
Python search and the plain tree ask it for one position at a time, by PyTorch as AlphaZero programs do, and by NumPy,
which has less to set up per call. One thread each except mctx, which takes what XLA gives it; contestants take turns.
Ours with random games stands beside OpenSpiel's C++ search. Simulations per second of processor time are less
disturbed by other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from interleave import HERE, Figures, commit, medians, take_turns


def contestants(openspiel: str, mctx: str, seconds: float) -> dict[str, list[str]]:
    """Who takes part, and how it is started."""
    ours, peers = [sys.executable, str(HERE / "ours_search.py")], HERE / "peers"
    limit = ["--seconds", str(seconds)]
    found = {
        "OpenSpiel C++, random games": [openspiel, str(peers / "openspiel_search.py"), "--kind", "c++", *limit],
        "ours, random games, 256": [*ours, "--network", "none", "--batch", "256", *limit],
        "ours, random games, 1": [*ours, "--network", "none", "--batch", "1", *limit],
    }
    for library, option in (("PyTorch", "torch"), ("NumPy", "numpy")):
        network = ["--network", option, *limit]
        found[f"OpenSpiel Python, {library}"] = [openspiel, str(peers / "openspiel_search.py"), *network]
        found[f"plain Python tree, {library}"] = [sys.executable, str(peers / "plain_search.py"), *network]
    for batch in ("1", "32", "256"):
        found[f"mctx gumbel, {batch}"] = [mctx, str(peers / "mctx_search.py"), "--batch", batch, *limit]
        for method in ("gumbel", "puct"):
            found[f"ours {method}, {batch}"] = [*ours, "--method", method, "--batch", batch, *limit]
    found["ours puct, residual 64x4, 256"] = [*ours, "--network", "residual", "--batch", "256", *limit]
    return found


def compare(middle: dict[str, Figures], key: str) -> dict[str, float]:
    """How many times faster ours is."""
    speed = {name: figures[key] for name, figures in middle.items()}
    pairs = {"ours random games, 256 / OpenSpiel C++": ("ours, random games, 256", "OpenSpiel C++, random games")}
    for library in ("PyTorch", "NumPy"):
        for peer in (f"OpenSpiel Python, {library}", f"plain Python tree, {library}"):
            pairs[f"ours puct, 256 / {peer}"] = ("ours puct, 256", peer)
    for batch in ("1", "32", "256"):
        pairs[f"ours gumbel / mctx gumbel, {batch}"] = (f"ours gumbel, {batch}", f"mctx gumbel, {batch}")
    took_part = {name: pair for name, pair in pairs.items() if set(pair) <= set(speed)}
    return {name: speed[ours] / speed[peer] for name, (ours, peer) in took_part.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--openspiel", default=sys.executable, help="a Python with open_spiel and torch")
    parser.add_argument("--mctx", help="a Python with mctx; without it, mctx takes no part")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contestants whose names begin so; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    able = contestants(args.openspiel, args.mctx or "", args.seconds)
    wanted = {
        name: command
        for name, command in able.items()
        if (args.mctx or not name.startswith("mctx")) and (not args.only or name.startswith(tuple(args.only)))
    }
    found = take_turns(wanted, args.rounds)
    middle = medians(found)
    speeds = ("simulations_per_second", "simulations_per_cpu_second")
    for name, figures in middle.items():
        more = "".join(f"  {key} {value:.2f}" for key, value in figures.items() if key not in speeds)
        wall, cpu = (figures[key] for key in speeds)
        low, high = (pick(one[speeds[0]] for one in found[name]) for pick in (min, max))
        spread = f"{wall:12,.0f} simulations/s ({low:,.0f} to {high:,.0f})"
        print(f"{name:32} {spread}, {cpu:12,.0f} per s of processor time{more}")
    ratios = {key: compare(middle, key) for key in speeds}
    for name, ratio in ratios["simulations_per_second"].items():
        print(f"{name:48} {ratio:8.2f} {ratios['simulations_per_cpu_second'][name]:8.2f}")
    if args.out:
        result = {
            "command": f"python benchmarks/search.py --rounds {args.rounds} --seconds {args.seconds:g}"
            + (f" --only {' '.join(map(repr, args.only))}" if args.only else ""),
            "commit": commit(),
            "network": "perceptron 84-64-64-8: 9,984 weights, 20 kFLOP per position; residual: 4 blocks of 64 channels",
            "simulations per move": 64,
            "rounds": found,
            "medians": middle,
            "ratios": ratios,
        }
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
