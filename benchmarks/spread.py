"""simple_spread with learning: ours against RLlib and BenchMARL, one thread, interleaved, the same settings.

    python benchmarks/spread.py --rllib .venv-rllib/bin/python --benchmarl .venv-benchmarl/bin/python

The peers live in environments of their own (`make bench-spread` builds them). Everybody collects 3,200
environment steps per iteration and makes 4 passes of 4 minibatches over them with a 2×64 tanh network.
Speed counts from the second iteration on. Returns are those of the training episodes at the end.
"""

from __future__ import annotations

import argparse
import sys

from interleave import HERE, medians, take_turns, write


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rllib", help="the Python of an environment with ray[rllib]")
    parser.add_argument("--benchmarl", help="the Python of an environment with benchmarl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=32_000)
    parser.add_argument("--out")
    options = parser.parse_args()
    ours, peers = str(HERE / "ours_spread.py"), HERE / "peers"
    contestants = {"coterie ippo": [sys.executable, ours]}
    contestants["coterie mappo"] = [sys.executable, ours, "--algorithm", "mappo"]
    contestants["ippo, autograd"] = [sys.executable, ours, "--autograd"]
    contestants["mappo, autograd"] = [sys.executable, ours, "--algorithm", "mappo", "--autograd"]
    if options.rllib:
        contestants["rllib ppo"] = [options.rllib, str(peers / "rllib_spread.py")]
    if options.benchmarl:
        script = str(peers / "benchmarl_spread.py")
        contestants["benchmarl ippo"] = [options.benchmarl, script]
        contestants["benchmarl mappo"] = [options.benchmarl, script, "--algorithm", "mappo"]
    words = ["--steps", str(options.steps)]
    found = take_turns({name: [*command, *words] for name, command in contestants.items()}, options.rounds)
    middle = medians(found)
    best = middle["coterie ippo"]["agent_steps_per_s"]
    print(f"{'':18}{'agent-steps/s':>15}{'ours is':>9}{'return':>9}")
    for name, one in middle.items():
        ratio = f"{best / one['agent_steps_per_s']:.1f}×"
        print(f"{name:18}{one['agent_steps_per_s']:15,.0f}{ratio:>9}{one['return_mean']:9.2f}")
    write({"steps": options.steps, "rounds": options.rounds, "medians": middle, "all": found}, options.out)


if __name__ == "__main__":
    main()
