"""What is lost at a hand-over: DoorKey by PPO or DQN after a clone or another task's policy, with several ways on.

    python benchmarks/hand_over.py --size 5 --seeds 5
    python benchmarks/hand_over.py --dqn --arms expert-20 --after 20480

With PPO each way is a number of iterations in which only the critic learns, with or without a loss that pulls the
policy to the one that it began as (KL, weight falling to 0). With `--dqn` clones are networks of action values, and the
ways are `DQN_WAYS`: `plain` values as the clone has them; values `scaled`, with a warm-up of the states' values; the
same with a margin to the clone's actions, `held` with some weight to the end or nearly `released`. `lost` is step 0
less the lowest later evaluation, on 100 validation episodes that are the same along a run, and `first` are the ten
evaluations after step 0. Clones and settings of PPO are those of `expert.py`; `--learner` changes some. The seeds are
those on which settings are chosen, not those that `expert.py` reports. Adds what it finds to the file `--out`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import expert
import numpy as np
from interleave import commit

ADVISOR = "advisor={{name: policy, policy: RUN, use: {{mode: kl, strength: {strength}, frames: {frames}}}}}"


DQN = (
    "{name: dqn, gamma: 0.9, learning_rate: 5e-5, learning_rate_schedule: linear, batch_size: 128, "
    "updates_per_step: 1, target: {update: soft, tau: 0.01}, replay: {learning_starts: 256}}"
)
VALUES = ("name=q_network", "hidden=[128, 128]", "activation=relu", "normalize_observations=false")
SCALED = "learner.hand_over={gap: 0.1, warm_up: 6}"
USE = "{{mode: margin, margin: 0.05, strength: 0.2, final: {}, frames: 12000}}"
MARGIN = f"advisor={{{{name: policy, policy: RUN, use: {USE}}}}}"
DQN_WAYS = {
    "plain": ("learner.hand_over={}",),
    "scaled": (SCALED,),
    "held": (SCALED, MARGIN.format(0.005)),
    "released": (SCALED, MARGIN.format(0.001)),
}


def ways(named: list[str], frames: int) -> dict[str, tuple[str, ...]]:
    """Settings of each way to go on, by name; RUN stands for the policy's run."""
    found = {}
    for one in named:
        warm_up, strength = (float(part) for part in one.split(":"))
        words = [f"learner.hand_over.warm_up={warm_up:g}"]
        if strength:
            words.append(ADVISOR.format(strength=strength, frames=frames))
        found[f"warm_up={warm_up:g}, kl={strength:g}"] = tuple(words)
    return found


def measure(run: expert.Run, frames: int) -> dict[str, Any]:
    """What one run lost and when it was solved."""
    at, values = expert.curve(run, frames)
    summary = run.summary() or {}
    return {
        "seed": summary["seed"],
        "step_0": values[0],
        "first": values[1:11],  # evaluations
        "lowest": min(values[1:]),
        "lowest_at": at[1:][int(np.argmin(values[1:]))] - frames,  # frames after the hand-over
        "lost": round(max(values[0] - min(values[1:]), 0.0), 4),
        "greedy": summary["evaluation"]["success_rate"],
        "last": summary["last"]["success_rate"],
        "frames_to_90": expert.solved_at(at, values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--arms", nargs="+", default=["expert-5"], help="transfer, or those of expert.py with a clone")
    parser.add_argument("--after", type=int, default=8_192, help="frames after the hand-over")
    parser.add_argument("--other", type=int, default=100_000, help="frames of PPO on the other task")
    every = ["1:0", "3:0", "1:0.3", "1:1"]
    parser.add_argument("--ways", nargs="+", default=every, help="WARM_UP:KL, the weight of the loss; 0: none")
    parser.add_argument("--frames", type=int, default=4_000, help="after which the weight is 0")
    parser.add_argument("--learner", nargs="*", default=[], help="further settings of PPO or DQN")
    parser.add_argument(
        "--dqn", nargs="*", choices=DQN_WAYS, help="clones of action values go on under DQN in these ways"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/hand-over"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dqn = options.dqn is not None
    folder, found = options.runs / f"{'dqn-' if dqn else ''}size-{options.size}", []
    chosen = {name: DQN_WAYS[name] for name in options.dqn or DQN_WAYS} if dqn else ways(options.ways, options.frames)
    more = [f"groups.agent.learner.{word}" for word in options.learner]
    for arm in options.arms:
        for name, way in chosen.items():
            rows = []
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                if arm == "transfer":
                    start, frames = expert.other_kept(seed, options.size, options.other, folder), 0
                else:
                    values = [f"groups.agent.policy.{word}" for word in VALUES] if dqn else []
                    start, frames = expert.clone_kept(arm, seed, options.size, folder, values)
                words = [
                    f"world.size={options.size}",
                    f"seed={seed}",
                    *expert.PLAIN,
                    *expert.OFTEN,
                    *([f"groups.agent.learner={DQN}"] if dqn else []),
                    *expert.go_on(start, way),
                ]
                words += [] if dqn else expert.learner_words(options.size)
                words += [*more, f"train.total_steps={options.after}"]
                label = "-".join([name, str(options.frames), *options.learner]).replace(", ", "-").replace("=", "")
                run = expert.train_kept(words, folder / f"{arm}-{label}" / f"seed={seed}")
                rows.append(measure(run, frames))
            what = {
                "size": options.size,
                "arm": arm,
                "way": name if dqn else f"{name}, over {options.frames:,} frames",
            }
            what |= {"algorithm": "DQN"} if dqn else {}
            made = {"learner": options.learner, "command": " ".join(["python", *sys.argv]), "commit": commit()}
            found.append({**what, **made, "seeds": rows})
            reached = [row["frames_to_90"] for row in rows]
            print(
                f"{arm:10} {name:20} step 0 {statistics.mean(row['step_0'] for row in rows):4.0%}",
                f"lost {[round(100 * row['lost']) for row in rows]} end {[round(100 * row['last']) for row in rows]}",
                f"to 90% {[at and round(at / 1000, 1) for at in reached]}",
                flush=True,
            )
    if options.out is not None:
        before = json.loads(options.out.read_text())["ways"] if options.out.exists() else []
        options.out.write_text(json.dumps({"ways": before + found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
