"""The effect of each improvement: an experiment with and without it, over several seeds.

    python benchmarks/ablations.py --base cartpole --seeds 5 --runs runs/learning

Trains what is not there yet with the product's own command, then writes ablations-BASE.json, .txt and .png by
`coterie compare`, with the differences of runs of one seed: the experiment's held-out return minus the other's.
`--keep ablations/spread-vdn` trains no runs of that experiment: its figures stay those of ablations-BASE.json, for
experiments whose code has not changed since. The file then says which commit trained them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from interleave import commit
from learning import train

from coterie.config.schema import experiments
from coterie.studies import statistics
from coterie.studies.compare import show
from coterie.studies.compare.compare import Comparison, Scale, Standing
from coterie.studies.compare.runs import Variant
from coterie.studies.statistics import Estimate, Reaching, bootstrap_stream
from coterie.training.evaluate import interval

WHOLE = {"cartpole": "cartpole-dqn", "lunarlander": "lunarlander-dqn", "spread": "spread-qmix"}
THRESHOLD = {"cartpole": 475, "lunarlander": 200, "spread": -12}


def draw(found: dict[str, Any]) -> bytes:
    """The figure of a comparison, from its file of results."""
    return show.draw_picture(show.picture_from_dict(found))


def scores(variant: Mapping[str, Any], key: str = "score") -> list[float]:
    """The held-out returns of a variant's runs, of their best policies (`score`) or their last (`last`)."""
    return [float(run[key]) for run in variant["runs"]]


def paired(whole: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns minus those of each other experiment with the same seeds, and Student's interval of the mean."""
    found = []
    for other in others:
        if [run["seed"] for run in whole["runs"]] != [run["seed"] for run in other["runs"]]:
            raise SystemExit(f"{whole['label']} and {other['label']} have runs of different seeds")
        for key, policies in (("score", "best"), ("last", "last")):
            differences = np.round(np.subtract(scores(whole, key), scores(other, key)), 3)
            mean, low, high = np.round(interval(differences), 3).tolist()
            row = {"minus": other["label"], "policies": policies, "differences": differences.tolist()}
            found.append(row | {"mean": mean, "interval": [low, high]})
    return found


def merge(new: Mapping[str, Any], old: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A comparison of the variants `names`: those of `new`, and the others of `old`, in one world without a scale."""
    for key in ("score", "worlds", "threshold"):
        if new[key] != old[key]:
            raise SystemExit(f"the runs that are kept have another {key}: {old[key]}, not {new[key]}")
    known = {one["label"]: dict(one) for one in (*old["variants"], *new["variants"])}
    variants = [known[name] for name in names]
    own = [[np.array(scores(one))] for one in variants]
    pooled = np.concatenate([task for (task,) in own])
    margin = 0.05 * np.ptp(pooled)
    thresholds = np.linspace(pooled.min() - margin, pooled.max() + margin, len(old["profile_thresholds"]))
    for one, mine in zip(variants, own, strict=True):
        one["performance_profile"] = statistics.performance_profile(mine, thresholds, bootstrap_stream()).to_dict()
    improvement = [
        {"of": names[i], "over": names[j]}
        | statistics.probability_of_improvement(own[i], own[j], bootstrap_stream()).to_dict()
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]
    changed = {"variants": variants, "probability_of_improvement": improvement}
    return {**new, **changed, "profile_thresholds": thresholds.tolist()}


def comparison(found: Mapping[str, Any]) -> Comparison:
    """What the text of a comparison shows, from its JSON; runs are counted, not read."""

    def estimate(one: Mapping[str, Any]) -> Estimate:
        return Estimate(np.array(one["value"]), *map(np.array, one["interval"]))

    labels = [one["label"] for one in found["variants"]]
    (world,) = found["worlds"]
    standings = [
        Standing(
            Variant(one["label"], {world: [SimpleNamespace(settings={}) for _ in one["runs"]]}),
            one["seeds"],
            {name: estimate(one[name]) for name in ("iqm", "mean")},
            estimate(one["area_under_curve"]),
            estimate(one["performance_profile"]),
            {world: Reaching(**one["frames_to_threshold"][world])},
        )
        for one in found["variants"]
    ]
    improvement = {
        (labels.index(one["of"]), labels.index(one["over"])): estimate(one)
        for one in found["probability_of_improvement"]
    }
    ends = {world: found["worlds"][world]["area_up_to"]}
    thresholds = np.array(found["profile_thresholds"])
    scales = {world: Scale()}
    return Comparison(standings, improvement, found["references"], scales, ends, thresholds, found["threshold"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", choices=list(WHOLE), nargs="+", default=list(WHOLE))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", default="runs/learning")
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--keep", nargs="+", default=[], help="experiments whose figures stay as the file has them")
    parser.add_argument("--commit", default=commit(), help="that trained them, if they were there already")
    options = parser.parse_args()
    folder, out = Path(options.runs), Path(options.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    for base in options.base:
        names = [WHOLE[base], *(name for name in experiments() if name.startswith(f"ablations/{base}-"))]
        for name in (name for name in names if name not in options.keep):
            train(name, options.seeds, folder)
        words = [str(Path(sys.executable).parent / "coterie"), "compare", "--threshold", str(THRESHOLD[base]), "--json"]
        runs = [f"{n}/seed={seed}" for n in names if n not in options.keep for seed in range(options.seeds)]
        # in that folder, so that the results name runs as the experiments are called
        plain = subprocess.run([*words, *runs], cwd=folder, check=True, capture_output=True, text=True)
        found, head = json.loads(plain.stdout), {"commit": options.commit}
        command = f"python benchmarks/ablations.py --base {base} --seeds {options.seeds}"
        if options.keep:
            old = json.loads((out / f"ablations-{base}.json").read_text())
            found = merge(found, old, names)
            command += f" --keep {' '.join(options.keep)}"
            head["kept"] = {name: old.get("kept", {}).get(name, old["commit"]) for name in options.keep}
        whole, *others = found["variants"]
        found = {"command": command, **head, "paired": paired(whole, others)} | found
        (out / f"ablations-{base}.json").write_text(json.dumps(found) + "\n")
        (out / f"ablations-{base}.png").write_bytes(draw(found))
        shown = show.as_table(comparison(found), found["score"])
        (out / f"ablations-{base}.txt").write_text(shown + "\n")
        print(shown)


if __name__ == "__main__":
    main()
