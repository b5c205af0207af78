"""Our PPO on the native simple_spread through `coterie.train`, recording on. Prints one JSON line.

The same batch, passes, minibatches and network as the peers: 3,200 environment steps, 4 passes of 4
minibatches, 2×64 tanh, shared parameters.
"""

from __future__ import annotations

import argparse
import json
import tempfile

import coterie


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=64_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2.5e-4)
    parser.add_argument("--algorithm", choices=("ippo", "mappo"), default="ippo")
    parser.add_argument("--autograd", action="store_true", help="without the compiled path of networks")
    options = parser.parse_args()
    overrides = [
        f"train.total_steps={options.steps}",
        f"seed={options.seed}",
        f"groups.team.policy.compiled={str(not options.autograd).lower()}",
        f"groups.team.learner.learning_rate={options.rate}",
        f"groups.team.learner.central_critic={str(options.algorithm == 'mappo').lower()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = coterie.train("benchmarks/spread.yaml", overrides, out=f"{folder}/run", quiet=True)
        speed = (run.summary() or {})["steps_per_s"]
        last = run.metrics()[-1]
        found = {
            "agent_steps_per_s": 3 * speed,
            "return_mean": last["team/return_mean"],
            "env_steps": last["env_steps"],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
