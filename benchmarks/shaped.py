"""Does shaping by a language model help: frames to 90% success in the 5×5 door-key world, with and without it.

    python benchmarks/shaped.py --runs runs/shaped

Trains both experiments for every seed and evaluates greedily every 2,048 frames. A run ends once three evaluations
in a row reach the threshold, or with its steps; frames to the threshold are those of the first one that does
(`coterie.studies.statistics`). Writes doorkey5-shaped.json (every seed's curve, the ratio, questions asked, the
command and the commit) and doorkey5-shaped.png to docs/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from interleave import commit

from coterie.config import schema
from coterie.runs.run import Run
from coterie.studies import figures, statistics
from coterie.training import loop
from coterie.training.loop import AfterValidation

ARMS = {"unshaped": "doorkey5-ppo", "shaped": "doorkey5-shaped"}
THRESHOLD = 0.9  # of episodes that reach the goal
IN_A_ROW = 3  # evaluations at the threshold before a run is ended
PAID = 0.9  # mean return of greedy play above which surely as many reach the goal: a success pays less than 1


def train(experiment: str, seed: int, folder: Path, overrides: list[str]) -> Run:
    """One run, trained if it is not there yet, ended once it holds the threshold."""
    path = folder / experiment / f"seed={seed}"
    if (path / "summary.json").exists():
        return Run.open(path)
    settings = schema.load(experiment, [f"seed={seed}", "train.video=false", "train.tensorboard=false", *overrides])
    good = 0

    def holds(env_steps: int, score: float) -> AfterValidation:
        nonlocal good
        good = good + 1 if score >= PAID else 0
        return AfterValidation.FINISH if good >= IN_A_ROW else AfterValidation.CONTINUE

    run = Run.create(path, settings)
    loop.train(settings, run, quiet=True, watch=holds)
    return run


def curve(run: Run) -> tuple[list[int], list[float]]:
    """Frames and greedy success of every evaluation."""
    rows = [row for row in run.metrics() if "eval/success_rate" in row]
    return [int(row["env_steps"]) for row in rows], [float(row["eval/success_rate"]) for row in rows]


def collect(run: Run) -> dict[str, Any]:
    """The result of one run."""
    frames, success = curve(run)
    last = run.metrics()[-1]
    judged = {key.rpartition("judge/")[2]: value for key, value in last.items() if "judge/" in key}
    kept = ("distinct", "texts", "accuracy", "abstentions", "lm/calls", "lm/cache_hits")
    return {
        "seed": run.config().seed,
        "frames_to_threshold": statistics.frames_to_threshold(frames, success, THRESHOLD),
        "frames": frames,
        "success": success,
        "wall_s": round(last["wall_s"], 1),
        "judge": {key: judged[key] for key in kept if key in judged},
    }


def draw(result: dict[str, Any]) -> bytes:
    """Every seed's curve, one colour for each arm."""
    from matplotlib.figure import Figure

    found = result["arms"]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for place, (arm, rows) in enumerate(found.items()):
        colour = figures.colour(place)
        for i, row in enumerate(rows):
            axes.plot(row["frames"], row["success"], color=colour, alpha=0.8, label=None if i else arm)
            if row["frames_to_threshold"] is not None:
                axes.plot(row["frames_to_threshold"], THRESHOLD, "o", color=colour, markersize=5)
    figures.draw_references(axes, [figures.Reference(f"{THRESHOLD:.0%}", THRESHOLD, threshold=True)])
    figures.label_panel(axes, f"MiniGrid DoorKey 5×5, PPO, {len(rows)} seeds each", figures.STEPS, "greedy success")
    axes.set_ylim(-0.03, 1.03)
    figures.put_legend(axes)
    return figures.as_png(figure)


def summarise(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Mean frames of both arms and their ratio; a run that never got there counts with all its frames."""
    means = {}
    for arm, rows in found.items():
        needed = [row["frames_to_threshold"] or row["frames"][-1] for row in rows]
        means[arm] = sum(needed) / len(needed)
    return {
        "mean_frames": means,
        "ratio": round(means["shaped"] / means["unshaped"], 3),
        "reached": {arm: sum(row["frames_to_threshold"] is not None for row in rows) for arm, rows in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--runs", default="runs/shaped")
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--commit", default=commit(), help="that trained them, if they were there already")
    parser.add_argument("overrides", nargs="*", help="key=value, for both arms")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in options.seeds:
        for arm, experiment in ARMS.items():
            found[arm].append(collect(train(experiment, seed, Path(options.runs), options.overrides)))
            print(arm, "seed", seed, "frames", found[arm][-1]["frames_to_threshold"], flush=True)
    seeds = " ".join(map(str, options.seeds))
    words = " ".join([*sys.argv[:1], "--seeds", seeds, *options.overrides])
    summary = {"command": f"python {words}", "commit": options.commit, "threshold": THRESHOLD, **summarise(found)}
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "doorkey5-shaped.json").write_text(json.dumps(summary | {"arms": found}, indent=1) + "\n")
    (out / "doorkey5-shaped.png").write_bytes(draw(summary | {"arms": found}))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
