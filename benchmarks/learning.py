"""Does it learn: experiments over several seeds, their scores and curves for docs/results.

    python benchmarks/learning.py --experiments gridworld-meet cartpole-ppo --seeds 5 --runs runs/learning

Trains what is not there yet with the product's own command, then writes NAME.json (every seed's held-out
greedy score beside step 0, random and expert play, the command, the commit and the curves) and NAME.png, which
`make pictures` draws again from the former.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from interleave import commit

from coterie.config import schema
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.studies.report import curves

ALL = [
    "gridworld-cooperative",
    "gridworld-competitive",
    "gridworld-meet",
    "gridworld-race",
    "cartpole-ppo",
    "lunarlander-ppo",
    "lunarlander-continuous-ppo",
    "spread-ippo",
    "spread-mappo",
    "tag-ppo",
    "cartpole-dqn",
    "lunarlander-dqn",
    "gridworld-iql",
    "spread-qmix",
    "spread-maddpg",
    "tag-maddpg",
    "pendulum-sac",
    "lunarlander-continuous-sac",
]


def train(experiment: str, seeds: int, folder: Path) -> list[Run]:
    """The runs of all seeds, trained if need be."""
    missing = [s for s in range(seeds) if not (folder / experiment / f"seed={s}" / "summary.json").exists()]
    if missing:
        words = ["-m", f"seed={','.join(map(str, missing))}", "--quiet", "--out", str(folder / experiment)]
        if len(missing) == 1:  # a sweep of one run would not name its folder after the seed
            words = [f"seed={missing[0]}", "--quiet", "--out", str(folder / experiment / f"seed={missing[0]}")]
        subprocess.run([str(Path(sys.executable).parent / "coterie"), "train", experiment, *words], check=True)
    return [Run.open(folder / experiment / f"seed={s}") for s in range(seeds)]


def collect(experiment: str, runs: list[Run], version: str) -> dict[str, Any]:
    """Every seed's scores, without the intervals that the run's own report shows."""
    rows = []
    for run in runs:
        summary = run.summary() or {}
        agent_types = {"best": summary["evaluation"], "last": summary["last"], "step_0": summary["step_0"]}
        rows.append(
            {name: summary[name] for name in ("seed", "wall_s", "steps_per_s", "best_step")}
            | {name: brief(result) for name, result in (agent_types | summary["baselines"]).items()}
        )
    seeds = ",".join(str(row["seed"]) for row in rows)
    return {
        "experiment": experiment,
        "command": f"coterie train {experiment} -m seed={seeds}",
        "commit": version,
        "settings": schema.read(schema.find(experiment)),  # docs/tools/tables.py marks results of other settings
        "env_steps": (runs[0].summary() or {})["env_steps"],
        "episodes": (runs[0].summary() or {})["episodes"],
        "seeds": rows,
        "charts": [figures.chart_to_dict(chart) for chart in curves.charts(runs)],
    }


def draw(found: dict[str, Any]) -> bytes:
    """The curves of an experiment, from its file of results."""
    count = len(found["seeds"])
    caption = f"Lines: mean of {count} seeds. Bands: its 95% interval by bootstrap over the seeds."
    return figures.charts_as_png([figures.chart_from_dict(one) for one in found["charts"]], caption)


def brief(result: dict[str, Any]) -> dict[str, Any]:
    groups = {name: round(group["return_mean"], 3) for name, group in result["groups"].items()}
    length = next(iter(result["groups"].values()))["length_mean"]
    return {"return_mean": groups, "length_mean": round(length, 3), "success_rate": result["success_rate"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiments", nargs="+", default=ALL)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", default="runs/learning")
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--commit", default=commit(), help="that trained them, if they were there already")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for experiment in options.experiments:
        runs = train(experiment, options.seeds, Path(options.runs))
        found = collect(experiment, runs, options.commit)
        (out / f"{experiment}.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / f"{experiment}.png").write_bytes(draw(found))
        for kind in ("best", "step_0", "random", "expert"):
            if kind in found["seeds"][0]:
                for group in found["seeds"][0][kind]["return_mean"]:
                    values = [row[kind]["return_mean"][group] for row in found["seeds"]]
                    shown = ", ".join(f"{v:.2f}" for v in values)
                    print(f"{experiment:28}{kind:10}{group:10}{statistics.mean(values):9.2f}   ({shown})")


if __name__ == "__main__":
    main()
