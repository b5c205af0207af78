"""Our MADDPG on the native simple_spread with continuous actions, recording on. Prints one JSON line.

The same batch, updates per step, network and replay as the peer: 25-step episodes in 32 copies, 128 time steps per
update, one update per 25 environment steps, 2×64 relu for policy and critic, shared parameters, 100,000 time steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile

import coterie


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=0, help="greedy ones at the end, in which it is evaluated")
    parser.add_argument("--autograd", action="store_true", help="without the compiled path of networks")
    options = parser.parse_args()
    overrides = [
        "train.video=false",
        f"train.total_steps={options.steps}",
        f"train.evaluate_episodes={max(options.episodes, 1)}",
        f"seed={options.seed}",
        f"groups.team.policy.compiled={str(not options.autograd).lower()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = coterie.train("spread-maddpg", overrides, out=f"{folder}/run", quiet=True)
        summary = run.summary() or {}
        last = run.metrics()[-1]
        found = {
            "agent_steps_per_s": 3 * summary["steps_per_s"],
            "return_mean": last["team/return_mean"],
            "env_steps": last["env_steps"],
        }
        if options.episodes:
            found["score"] = summary["last"]["groups"]["team"]["return_mean"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
