"""Frames per second of CPU time with learning and a cached teacher, beside a plain loop over one environment.

    python benchmarks/teacher_speed.py [--rounds 3] [--out docs/results/bench-teacher.json]

Ours trains `doorkey5-teacher` with 64 copies and a teacher that stays on; the peer (`peers/plain_teacher.py`) steps one
MiniGrid environment. Both take turns, one thread each. Compilation, building and evaluations are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import interleave

ITERATIONS = 40
SETTINGS = [
    *(
        "train.num_envs=64",
        "groups.agent.advisor.use.frames=1000000000",
        "train.video=false",
        "train.tensorboard=false",
    ),
]


def measure_ours(seed: int) -> float:
    """Environment steps per second of CPU time."""
    from coterie.config import schema
    from coterie.runs.run import Run
    from coterie.training.loop import Training

    settings = schema.load("doorkey5-teacher", [*SETTINGS, f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        training = Training(settings, Run.create(Path(folder) / "run", settings))
        training.advance()
        began = time.process_time()
        for _ in range(ITERATIONS):
            training.advance()
        return ITERATIONS * settings.train.iteration_steps / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", action="store_true", help="measure ours once and print it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    given = parser.parse_args()
    if given.ours:
        print(json.dumps({"frames_per_cpu_s": round(measure_ours(given.seed))}))
        return
    contestants = {
        "coterie": [sys.executable, str(Path(__file__)), "--ours"],
        "plain loop": [sys.executable, str(interleave.HERE / "peers" / "plain_teacher.py")],
    }
    found = interleave.take_turns(contestants, given.rounds)
    middle = interleave.medians(found)
    times = interleave.ratios(middle, "frames_per_cpu_s")
    interleave.write({"rounds": given.rounds, "all": found, "medians": middle, "times": times}, given.out)


if __name__ == "__main__":
    main()
