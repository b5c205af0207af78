"""Tree search on Connect Four against OpenSpiel, mctx and a tree as tutorials write it: simulations per second.

    python benchmarks/search.py --openspiel PYTHON --mctx PYTHON [--rounds 3] [--out FILE.json]

64 simulations per move, the same small perceptron (84 or 126 inputs, two layers of 64), one thread each except mctx,
which takes what XLA gives it; contestants take turns. Ours with random games stands beside OpenSpiel's C++ search.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from interleave import HERE, commit, medians, take_turns


def contestants(openspiel: str, mctx: str, seconds: float) -> dict[str, list[str]]:
    """Who takes part, and how it is started."""
    ours, peers = [sys.executable, str(HERE / "ours_search.py")], HERE / "peers"
    limit = ["--seconds", str(seconds)]
    found = {
        "OpenSpiel Python, network": [openspiel, str(peers / "openspiel_search.py"), "--kind", "python", *limit],
        "OpenSpiel C++, random games": [openspiel, str(peers / "openspiel_search.py"), "--kind", "c++", *limit],
        "plain Python tree, network": [sys.executable, str(peers / "plain_search.py"), *limit],
        "ours, random games, 256": [*ours, "--network", "none", "--batch", "256", *limit],
        "ours, random games, 1": [*ours, "--network", "none", "--batch", "1", *limit],
    }
    for batch in ("1", "32", "256"):
        found[f"mctx gumbel, {batch}"] = [mctx, str(peers / "mctx_search.py"), "--batch", batch, *limit]
        for method in ("gumbel", "puct"):
            found[f"ours {method}, {batch}"] = [*ours, "--method", method, "--batch", batch, *limit]
    found["ours puct, residual 64x4, 256"] = [*ours, "--network", "residual", "--batch", "256", *limit]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--openspiel", required=True)
    parser.add_argument("--mctx", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = take_turns(contestants(args.openspiel, args.mctx, args.seconds), args.rounds)
    middle = medians(found)
    speed = {name: figures["simulations_per_second"] for name, figures in middle.items()}
    ratios = {
        "ours puct, 256 / OpenSpiel Python": speed["ours puct, 256"] / speed["OpenSpiel Python, network"],
        "ours random games, 256 / OpenSpiel C++": speed["ours, random games, 256"]
        / speed["OpenSpiel C++, random games"],
    }
    for batch in ("1", "32", "256"):
        ratios[f"ours gumbel / mctx gumbel, {batch}"] = speed[f"ours gumbel, {batch}"] / speed[f"mctx gumbel, {batch}"]
    for name, figures in middle.items():
        more = "".join(f"  {key} {value:.2f}" for key, value in figures.items() if key != "simulations_per_second")
        print(f"{name:32} {figures['simulations_per_second']:12,.0f} simulations/s{more}")
    for name, ratio in ratios.items():
        print(f"{name:42} {ratio:8.2f}")
    if args.out:
        result = {
            "command": "make bench-search",
            "commit": commit(),
            "rounds": found,
            "medians": middle,
            "ratios": ratios,
        }
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
