"""PPO against its peers on CartPole and LunarLander: one thread, interleaved, the same settings for all.

    python benchmarks/ppo.py [--rounds 3] [--steps 100000] [--out docs/results/bench-ppo.json]

Prints a table of medians, a profile of our own run, and one JSON line.
"""

from __future__ import annotations

import argparse
import sys

from interleave import HERE, RACE_HEAD, profile, race, write

CONTESTANTS = {
    "coterie": [sys.executable, str(HERE / "ours_racing.py"), str(HERE / "ppo.yaml")],
    "coterie, autograd": [sys.executable, str(HERE / "ours_racing.py"), str(HERE / "ppo.yaml"), "--autograd"],
    "stable-baselines3": [sys.executable, str(HERE / "peers" / "sb3_ppo.py")],
    "plain loop": [sys.executable, str(HERE / "peers" / "plain_ppo.py")],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "LunarLander-v3"])
    parser.add_argument("--out")
    options = parser.parse_args()
    summary: dict[str, object] = {"steps": options.steps, "rounds": options.rounds}
    print(RACE_HEAD)
    for env in options.envs:
        summary[env] = race(env, CONTESTANTS, options.steps, options.rounds)
    for env in options.envs:
        overrides = [f"world.name=gymnasium/{env}", "train.total_steps=51200"]
        print(f"\nprofile of our run on {env}\n{profile('benchmarks/ppo.yaml', overrides)}")
    write(summary, options.out)


if __name__ == "__main__":
    main()
