"""Speed of the grid world with learning: 8×8, 4 agents, 1024 copies, PPO with 4 passes and a 2×64 network.

    python benchmarks/grid_learning.py [--rounds 3] [--out FILE]

Through `coterie.train` with recording on, one thread, evaluations not counted. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import coterie

AGENTS = 4
SETTINGS = [
    f"world.num_agents={AGENTS}",
    "train.num_envs=1024",
    "train.rollout_steps=32",
    "train.total_steps=655360",
    "train.evaluate_every=1000",
    "train.evaluate_episodes=16",
    "train.checkpoint_every=20",
    "train.video=false",
    "groups.team.policy.hidden=[64,64]",
    "groups.team.learner.epochs=4",
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    speeds = []
    for seed in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            run = coterie.train("gridworld-cooperative", [*SETTINGS, f"seed={seed}"], out=f"{folder}/run", quiet=True)
            speeds.append((run.summary() or {})["steps_per_s"] * AGENTS)
    found = {"agent_steps_per_s_learning": round(statistics.median(speeds)), "rounds": [round(s) for s in speeds]}
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
