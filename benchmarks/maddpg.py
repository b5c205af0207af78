"""MADDPG on simple_spread: ours against BenchMARL's, one thread, interleaved, the same settings.

    python benchmarks/maddpg.py --benchmarl .venv-benchmarl/bin/python --steps 100000 --episodes 1024

The peer lives in an environment of its own (`make bench-maddpg` builds it) and takes continuous actions only, so both
have those. Speed counts from the second iteration on. With `--episodes` both are also scored in greedy play at the end.
"""

from __future__ import annotations

import argparse
import sys

from interleave import HERE, medians, ratios, take_turns, write


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--benchmarl", required=True, help="the Python of an environment with benchmarl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16_000, help="environment steps")
    parser.add_argument("--episodes", type=int, default=0, help="greedy ones at the end, in which they are evaluated")
    parser.add_argument("--rate", type=float, default=3e-3, help="the peer's learning rate")
    parser.add_argument("--out")
    options = parser.parse_args()
    words = ["--steps", str(options.steps), "--episodes", str(options.episodes)]
    peer = [options.benchmarl, str(HERE / "peers" / "benchmarl_maddpg.py"), "--rate", str(options.rate)]
    contestants = {
        "coterie": [sys.executable, str(HERE / "ours_maddpg.py"), *words],
        "autograd": [sys.executable, str(HERE / "ours_maddpg.py"), *words, "--autograd"],
        "benchmarl": [*peer, *words],
    }
    found = take_turns(contestants, options.rounds)
    middle = medians(found)
    faster = ratios(middle, "agent_steps_per_s")
    shown = "score" if options.episodes else "return_mean"
    print(f"{'':12}{'agent-steps/s':>15}{'ours is':>9}{shown:>13}")
    for name, one in middle.items():
        print(f"{name:12}{one['agent_steps_per_s']:15,.0f}{faster.get(name, 1):8.1f}×{one[shown]:13.2f}")
    write(
        {"steps": options.steps, "rounds": options.rounds, "medians": middle, "ratios": faster, "all": found},
        options.out,
    )


if __name__ == "__main__":
    main()
