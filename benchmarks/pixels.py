"""PPO on pictures of 84×84×4 bytes against Stable-Baselines3's CnnPolicy: one thread, interleaved, equal settings.

    python benchmarks/pixels.py [--rounds 2] [--steps 4096] [--out docs/results/bench-pixels.json]

The environment (`peers/screen.py`) costs next to nothing. Prints a table of medians, and one JSON line. Steps per
second are counted after the first iteration, in which both load and compile. Memory is the peak of the whole process,
with everything that it imports. `gpu_pixels.py --screen` measures a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys

from interleave import HERE, RACE_HEAD, race, write

CONTESTANTS = {
    "coterie": [sys.executable, str(HERE / "ours_racing.py"), str(HERE / "pixels.yaml"), "--warm"],
    "stable-baselines3": [sys.executable, str(HERE / "peers" / "sb3_pixels.py")],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4096, help="of each measurement; a multiple of 1024")
    parser.add_argument("--out")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "peers"), os.environ.get("PYTHONPATH", "")])
    print(RACE_HEAD)
    found = race("screen:Screen84-v0", CONTESTANTS, options.steps, options.rounds)
    write({"steps": options.steps, "rounds": options.rounds, "Screen84-v0": found}, options.out)


if __name__ == "__main__":
    main()
