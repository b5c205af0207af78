"""DQN against its peers on CartPole: one thread, interleaved, the same settings for all.

    python benchmarks/dqn.py [--rounds 3] [--steps 100000] [--out docs/results/bench-dqn.json]

Everybody learns from batches of 128, one every 10 frames, with a 120-84 network; the peers play one
environment, ours several copies at the same number of updates per frame. Prints a table of medians, a
profile of our own run, and one JSON line.
"""

from __future__ import annotations

import argparse
import sys

from interleave import HERE, RACE_HEAD, profile, race, write

CONTESTANTS = {
    "coterie": [sys.executable, str(HERE / "ours_racing.py"), str(HERE / "dqn.yaml")],
    "coterie, autograd": [sys.executable, str(HERE / "ours_racing.py"), str(HERE / "dqn.yaml"), "--autograd"],
    "stable-baselines3": [sys.executable, str(HERE / "peers" / "sb3_dqn.py")],
    "plain loop": [sys.executable, str(HERE / "peers" / "plain_dqn.py")],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--out")
    options = parser.parse_args()
    print(RACE_HEAD)
    found = race(options.env, CONTESTANTS, options.steps, options.rounds)
    overrides = [f"world.name=gymnasium/{options.env}", "train.total_steps=50000"]
    print(f"\nprofile of our run on {options.env}\n{profile('benchmarks/dqn.yaml', overrides)}")
    write({"steps": options.steps, "rounds": options.rounds, options.env: found}, options.out)


if __name__ == "__main__":
    main()
