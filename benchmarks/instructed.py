"""Does a policy follow instructions in wordings that it was not trained on: success by list of wordings.

    python benchmarks/instructed.py --seeds 3 --runs runs/instructed --out docs/results

Trains what is not there yet: `gridworld-instructed`, the same with the number of each sentence in place of its words,
and the same with neither, both for fewer steps. Writes gridworld-instructed.json (every seed's success on each list,
greedy and as trained, that is with actions drawn, beside random play, the reference player and step 0) and a PNG with
the curves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from interleave import commit

import coterie
from coterie.config import schema
from coterie.core.types import Array
from coterie.lm.ask.interface import Prompt
from coterie.lm.ask.scripted import Scripted
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.studies.statistics import Estimate
from coterie.training import table
from coterie.worlds.gridworld.world import Gridworld

EXPERIMENT = "gridworld-instructed"
LISTS = ("train", "held_out", "relational")
ARMS = {
    "words": [],
    "number": ["groups.team.policy.text=null"],
    "nothing": ["groups.team.policy.text.lm=instructed:DEAF"],
}


class Deaf(Scripted):
    """A model to whom all texts are alike."""

    def embed(self, prompts: list[Prompt]) -> Array:  # type: ignore[override]  # lists are all it gets
        return np.ones((len(prompts), 1), np.float32)


DEAF = Deaf(lambda prompt, random: "", identity="deaf")


def train(arm: str, seed: int, folder: Path, changes: list[str]) -> Run:
    """A run with all its checkpoints, trained unless it is there."""
    path = folder / arm / f"seed={seed}"
    if not (path / "summary.json").exists():
        told = [
            *ARMS[arm],
            *changes,
            f"seed={seed}",
            "train.keep_checkpoints=1000",
            "train.video=false",
            "train.tensorboard=false",
        ]
        coterie.train(EXPERIMENT, told, out=path, quiet=True)
    return Run.open(path)


def success(run: Run, which: str, wordings: str, episodes: int, greedy: bool = True) -> float:
    """The share of episodes on evaluation seeds that a checkpoint plays as told."""
    loaded = table.load(str(run.path), which, [f"world.instructions={wordings}"])
    return round(float(np.mean(loaded.evaluate(episodes, greedy=greedy).success)), 4)


def curve(run: Run, wordings: str, steps: list[int], episodes: int) -> list[float]:
    """Greedy success at every checkpoint; the sentences are embedded once for all of them."""
    loaded, values = table.load(str(run.path), "last", [f"world.instructions={wordings}"]), []
    for step in steps:
        saved = run.load_checkpoint(str(step))
        for group in loaded.groups:
            group.policy.load(saved["policies"][group.name])
        values.append(round(float(np.mean(loaded.evaluate(episodes).success)), 4))
    return values


def reference(player: str, wordings: str, episodes: int) -> float:
    """The same of random play or the reference player: the first episode of as many copies."""
    settings = schema.load(EXPERIMENT, [f"world.instructions={wordings}"]).world.settings
    world, random = Gridworld(settings, episodes), np.random.default_rng(0)
    world.reset(0)
    followed, over = np.zeros(episodes, bool), np.zeros(episodes, bool)
    while not over.all():
        drawn = random.integers(0, 5, (episodes, settings.num_agents))
        timestep = world.step({"agent": drawn if player == "random" else world.expert("agent", random)})
        followed |= timestep.success & ~over
        over |= timestep.ended
    return float(followed.mean())


def measure(run: Run, episodes: int) -> dict[str, Any]:
    """The success of one seed on every list."""
    summary = run.summary() or {}
    return {
        "seed": summary["seed"],
        "best_step": summary["best_step"],
        "wall_s": summary["wall_s"],
        "step_0": summary["step_0"]["success_rate"],
        "greedy": {wordings: success(run, "best", wordings, episodes) for wordings in LISTS},
        "drawn": {wordings: success(run, "best", wordings, episodes, greedy=False) for wordings in LISTS},
    }


def draw(found: dict[str, Any]) -> bytes:
    """Success against steps, one line per list: the mean, between the least and the most of the seeds."""
    from matplotlib.figure import Figure

    steps, floor = found["curves"]["env_steps"], found["random"]["train"]
    curves = {name: rows for name, rows in found["curves"].items() if name != "env_steps"}

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for place, (wordings, rows) in enumerate(curves.items()):
        values = np.array(rows)
        line = Estimate(values.mean(axis=0), values.min(axis=0), values.max(axis=0))
        label = f"wordings: {wordings.replace('_', ' ')}"
        figures.draw_series(axes, figures.Series(label, figures.colour(place), np.array(steps), line))
    references = [figures.Reference("random play", floor), figures.Reference("85%", 0.85, threshold=True)]
    figures.draw_references(axes, references)
    figures.label_panel(axes, EXPERIMENT, figures.STEPS, "share of episodes played as told")
    axes.set_ylim(-0.03, 1.03)
    figures.put_legend(axes)
    figure.supxlabel(f"mean of {len(rows)} seeds, band from least to most", fontsize=8, color=figures.TEXT)
    return figures.as_png(figure)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ablation-seeds", type=int, default=1, help="of the policies that read no words")
    parser.add_argument("--ablation-steps", type=int, default=1500000, help="environment steps of theirs")
    parser.add_argument("--runs", default="runs/instructed")
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--points", type=int, default=200, help="episodes for each point of the curves")
    parser.add_argument("--set", nargs="*", default=[], help="key=value changes of the experiment")
    parser.add_argument("--commit", default=commit(), help="that trained them, if they were there already")
    options = parser.parse_args()
    runs = {"words": [train("words", seed, Path(options.runs), options.set) for seed in range(options.seeds)]}
    shorter = [*options.set, f"train.total_steps={options.ablation_steps}"]
    for arm in ("number", "nothing"):
        runs[arm] = [train(arm, seed, Path(options.runs), shorter) for seed in range(options.ablation_seeds)]
    found: dict[str, Any] = {
        "experiment": EXPERIMENT,
        "command": f"coterie train {EXPERIMENT} -m seed={','.join(map(str, range(options.seeds)))}",
        "evaluation": f"coterie eval RUN world.instructions=held_out --episodes {options.episodes}",
        "commit": options.commit,
        "changes": options.set,
        "env_steps": {arm: (trained[0].summary() or {})["env_steps"] for arm, trained in runs.items()},
        "episodes": options.episodes,
    }
    for player in ("random", "expert"):
        found[player] = {w: round(reference(player, w, options.episodes), 4) for w in LISTS}
    for arm, trained in runs.items():
        found[arm] = [measure(run, options.episodes) for run in trained]
        for way, wordings in itertools.product(("greedy", "drawn"), LISTS):
            values = [row[way][wordings] for row in found[arm]]
            shown = ", ".join(f"{value:.1%}" for value in values)
            print(f"{arm:10}{way:8}{wordings:12}{statistics.mean(values):8.1%}   ({shown})", flush=True)
    steps = runs["words"][0].steps()
    found["curves"] = {"env_steps": steps} | {
        wordings: [curve(run, wordings, steps, options.points) for run in runs["words"]] for wordings in LISTS
    }
    out = Path(options.out)
    (out / f"{EXPERIMENT}.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / f"{EXPERIMENT}.png").write_bytes(draw(found))


if __name__ == "__main__":
    main()
