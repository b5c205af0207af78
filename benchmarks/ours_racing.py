"""Our side of a race: an experiment on a Gymnasium environment through `coterie.train`, recording on.

Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time

import coterie


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment", help="the YAML file of the settings that are measured")
    parser.add_argument("overrides", nargs="*", help="further settings")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", action="store_true", help="measure the speed after the first iteration")
    parser.add_argument("--autograd", action="store_true", help="without the compiled path")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"world.name=gymnasium/{options.env}",
            f"train.total_steps={options.steps}",
            f"seed={options.seed}",
            *(["groups.agent.policy.compiled=false"] if options.autograd else []),
            *options.overrides,
        ]
        run = coterie.train(options.experiment, overrides, out=f"{folder}/run", quiet=True)
        summary = run.summary() or {}
        speed = summary["steps_per_s"]
        if options.warm:
            _, first, *_, last = run.metrics()
            speed = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])
        result = {
            "steps_per_s": speed,
            "return_100": run.metrics()[-1]["agent/return_100"],
            "greedy": summary["last"]["groups"]["agent"]["return_mean"],
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "cpu_s": time.process_time(),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
