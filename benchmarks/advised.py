"""PPO with and without advice on the cooperative grid: environment steps to 90% of the expert's return.

    python benchmarks/advised.py --seeds 3 --runs runs/advised --out docs/results/gridworld-advised.json

Trains what is not there yet, all arms evaluated equally often (greedy, 100 episodes, nobody advising), then replays
one advised run from its cache without a model. Runs without advice end after LIMIT steps, but their schedules are
those of the whole experiment. Writes the JSON and a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from interleave import commit

from coterie.config import schema
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.training import loop
from coterie.training.loop import AfterValidation

SHARE = 0.9  # of the expert's return
EVERY = 4096  # environment steps between evaluations
LIMIT = 225_280  # environment steps after which a run ends
LEARNER = "groups.team.learner"
ADVISOR = "groups.team.advisor"
ARMS: dict[str, tuple[str, list[str]]] = {  # experiment, changes; the quickest of the settings tried for PPO alone
    "PPO as shipped": ("gridworld-cooperative", []),
    "PPO tuned for speed": ("gridworld-cooperative", [f"{LEARNER}.learning_rate=3e-3", f"{LEARNER}.epochs=8"]),
    "PPO advised": ("gridworld-advised", []),
}


def words(arm: str, folder: Path, seed: int) -> list[str]:
    """The overrides of a run's command."""
    experiment, changes = ARMS[arm]
    timestep = 16 if experiment == "gridworld-advised" else 64
    told = [*changes, f"seed={seed}", f"train.evaluate_every={EVERY // (64 * timestep)}"]
    if experiment == "gridworld-advised":
        told.append(f"{ADVISOR}.lm.cache.path={folder / f'answers-{seed}.db'}")
    return [*told, "train.video=false", "train.tensorboard=false"]


def train(experiment: str, told: list[str], path: Path) -> Run:
    """A run, trained unless it is there."""
    if not (path / "summary.json").exists():
        settings = schema.load(experiment, told)
        run = Run.create(path, settings)
        loop.train(settings, run, quiet=True, watch=until_limit)
    return Run.open(path)


def until_limit(steps: int, score: float) -> AfterValidation:
    """Finish a run after LIMIT steps."""
    return AfterValidation.FINISH if steps >= LIMIT else AfterValidation.CONTINUE


def curve(run: Run) -> list[tuple[int, float]]:
    """Environment steps and greedy returns of the policy alone."""
    name = "team/eval/return_mean"
    return [(record["env_steps"], record[name]) for record in run.metrics() if name in record]


def first_above(run: Run, threshold: float) -> int | None:
    """Environment steps at the first evaluation that reaches a return; none: never."""
    return next((steps for steps, score in curve(run) if score >= threshold), None)


def measure(run: Run, threshold: float) -> dict[str, Any]:
    """The result of one seed."""
    summary, last = run.summary() or {}, run.metrics()[-1]
    asked = {
        name.removeprefix("team/advice/"): value for name, value in last.items() if name.startswith("team/advice/")
    }
    kept = ("lm/calls", "distinct", "abstentions", "agreement", "kl", "optimal", "share")
    return {
        "seed": summary["seed"],
        "steps_to_threshold": first_above(run, threshold),
        "best_return": round(summary["evaluation"]["groups"]["team"]["return_mean"], 3),
        "wall_s": summary["wall_s"],
        "curve": [[step, round(score, 3)] for step, score in curve(run)],
    } | {f"advice/{name}": round(asked[name], 4) for name in kept if name in asked}


def replayed(folder: Path, first: Run, seed: int) -> dict[str, Any]:
    """The same run once more with the cache alone: what it asked, and whether its records are the same."""
    told = [*words("PPO advised", folder, seed), f"{ADVISOR}.lm.cache.mode=replay-only"]
    again = train("gridworld-advised", told, folder / f"replay-seed={seed}")
    records = [
        [{k: v for k, v in r.items() if k != "wall_s" and "/lm/" not in k} for r in run.metrics()]
        for run in (first, again)
    ]
    return {
        "seed": seed,
        "calls": again.metrics()[-1]["team/advice/lm/calls"],
        "records": len(records[1]),
        "identical_but_for_clock_and_ledger": records[0] == records[1],
    }


def draw(found: dict[str, Any]) -> bytes:
    """Every seed's curve, thin, and where 90% is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for place, (arm, rows) in enumerate(found["arms"].items()):
        for number, row in enumerate(rows):
            steps, scores = zip(*row["curve"], strict=True)
            axes.plot(steps, scores, color=figures.colour(place), linewidth=1, label=None if number else arm)
    figures.draw_references(axes, [figures.Reference("90% of the expert", found["threshold"], threshold=True)])
    title = f"collecting three targets, 8×8, {len(rows)} seeds"
    figures.label_panel(axes, title, figures.STEPS, "mean return, greedy, nobody advising")
    axes.set_ylim(-20, 52)
    figures.put_legend(axes, "right")
    return figures.as_png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/advised"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/gridworld-advised.json"))
    given = parser.parse_args()
    runs = {
        arm: [
            train(experiment, words(arm, given.runs, seed), given.runs / f"{arm.replace(' ', '-')}-seed={seed}")
            for seed in range(given.seeds)
        ]
        for arm, (experiment, _) in ARMS.items()
    }
    summary = runs["PPO advised"][0].summary() or {}
    expert = summary["baselines"]["expert"]["groups"]["team"]["return_mean"]
    threshold = SHARE * expert
    found = {arm: [measure(run, threshold) for run in mine] for arm, mine in runs.items()}
    reached = {arm: [row["steps_to_threshold"] for row in rows] for arm, rows in found.items()}
    result = {
        "command": f"python benchmarks/advised.py --seeds {given.seeds}",
        "runs": {
            arm: f"coterie train {name} {' '.join(words(arm, Path('runs/advised'), 0))}"
            for arm, (name, _) in ARMS.items()
        },
        "commit": commit(),
        "expert_return": round(expert, 3),
        "threshold": round(threshold, 3),
        "evaluated_every": EVERY,
        "arms": found,
        "mean_steps": {arm: statistics.mean(all_) if None not in all_ else None for arm, all_ in reached.items()},
        "replay": replayed(given.runs, runs["PPO advised"][0], 0),
    }
    tuned, advised = (result["mean_steps"][arm] for arm in ("PPO tuned for speed", "PPO advised"))
    result["ratio_to_tuned"] = round(advised / tuned, 3) if tuned and advised else None
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    given.out.with_suffix(".png").write_bytes(draw(result))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
