"""SAC against Stable-Baselines3's: one thread, interleaved, the same settings for both.

    python benchmarks/sac.py [--rounds 3] [--lunar-rounds 3] [--out docs/results/bench-sac.json]

Both learn with equal networks, batches, learning rates and updates per step; ours plays several copies, the peer one.
Scores are of greedy play of the last policy, 100 episodes. On LunarLander everybody has 20,000 steps, of four frames
each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from interleave import HERE, Figures, medians, profile, ratios, take_turns, write

PLAIN = ["train.evaluate_every=1000000", "train.video=false", "train.tensorboard=false"]
OURS = [sys.executable, str(HERE / "ours_racing.py")]
PEER = [sys.executable, str(HERE / "peers" / "sb3_sac.py")]
RACES: Mapping[str, tuple[int, Mapping[str, Sequence[str]]]] = {  # environment: steps, contestants
    "Pendulum-v1": (
        20_000,
        {
            "coterie": [*OURS, "pendulum-sac", *PLAIN],
            "stable-baselines3": [*PEER, "--hidden", "64", "--batch", "256", "--every", "2", "--rate", "1e-3"],
        },
    ),
    "LunarLander-v3": (
        20_000,
        {
            "coterie": [*OURS, "lunarlander-continuous-sac", *PLAIN],
            "stable-baselines3": [
                *(*PEER, "--continuous", "--hidden", "64", "--batch", "128", "--every", "1", "--rate", "7.3e-4"),
                *("--linear", "--repeat", "4", "--tau", "0.01", "--starts", "2500"),
            ],
        },
    ),
}


def race(env: str, rounds: int) -> dict[str, object]:
    """Both in turns: medians of speeds, every round's score."""
    steps, contestants = RACES[env]
    words = ["--env", env, "--steps", str(steps)]
    found = take_turns({name: [*command, *words] for name, command in contestants.items()}, rounds)
    middle: dict[str, Figures] = medians(found)
    for name, one in middle.items():
        ratio = f"{next(iter(middle.values()))['steps_per_s'] / one['steps_per_s']:.1f}×"
        scores = ", ".join(f"{figures['greedy']:.1f}" for figures in found[name])
        print(f"{env:16}{name:20}{one['steps_per_s']:10,.0f}{ratio:>9}   {scores}", flush=True)
    return {"steps": steps, "measured": middle, "all": found, "ratios": ratios(middle, "steps_per_s")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lunar-rounds", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    print(f"{'':16}{'':20}{'steps/s':>10}{'ours is':>9}   greedy returns, seed by seed")
    summary = {env: race(env, count) for env, count in zip(RACES, (options.rounds, options.lunar_rounds)) if count}
    print(f"\nprofile of our run on Pendulum-v1\n{profile('pendulum-sac', PLAIN)}")
    write({"rounds": [options.rounds, options.lunar_rounds], **summary}, options.out)


if __name__ == "__main__":
    main()
