"""The effect of each improvement: an experiment with and without it, over several seeds.

    python benchmarks/ablations.py --base cartpole --seeds 5 --runs runs/learning

Trains what is not there yet with the product's own command, then writes ablations-BASE.json, .txt and .png by
`coterie compare`, with the differences of runs of one seed: the experiment's held-out return minus the other's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from interleave import commit
from learning import train

from coterie.config.schema import experiments
from coterie.studies.compare import show
from coterie.training.evaluate import interval
from coterie.training.run import Run

WHOLE = {"cartpole": "cartpole-dqn", "lunarlander": "lunarlander-dqn", "spread": "spread-qmix"}
THRESHOLD = {"cartpole": 475, "lunarlander": 200, "spread": -12}


def draw(found: dict[str, Any]) -> bytes:
    """The figure of a comparison, from its file of results; files of 0.1 call variants contenders."""
    return show.draw_picture(show.picture_from_dict({"variants": found.get("contenders"), **found}))


def returns(run: Run, key: str) -> float:
    """A run's held-out return, of the one group that learns: of its best policies (`evaluation`) or its last."""
    (group,) = (run.summary() or {})[key]["groups"].values()
    return float(group["return_mean"])


def paired(whole: str, runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Returns minus those of each other experiment with the same seeds, and Student's interval of the mean."""
    found = []
    for name in (name for name in runs if name != whole):
        for key, policies in (("evaluation", "best"), ("last", "last")):
            both = [[returns(run, key) for run in runs[one]] for one in (whole, name)]
            differences = np.round(np.subtract(*both), 3)
            mean, low, high = np.round(interval(differences), 3).tolist()
            row = {"minus": name, "policies": policies, "differences": differences.tolist()}
            found.append(row | {"mean": mean, "interval": [low, high]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", choices=list(WHOLE), nargs="+", default=list(WHOLE))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", default="runs/learning")
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--commit", default=commit(), help="that trained them, if they were there already")
    options = parser.parse_args()
    folder, out = Path(options.runs), Path(options.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    for base in options.base:
        names = [WHOLE[base], *(name for name in experiments() if name.startswith(f"ablations/{base}-"))]
        trained = {name: train(name, options.seeds, folder) for name in names}
        words = [str(Path(sys.executable).parent / "coterie"), "compare", "--threshold", str(THRESHOLD[base])]
        runs = [f"{name}/seed={seed}" for name in names for seed in range(options.seeds)]
        drawn = subprocess.run(
            [*words, "--figure", str(out / f"ablations-{base}.png"), *runs],
            cwd=folder,  # so that the results name runs as the experiments are called
            check=True,
            capture_output=True,
            text=True,
        )
        (out / f"ablations-{base}.txt").write_text(drawn.stdout)
        plain = subprocess.run([*words, "--json", *runs], cwd=folder, check=True, capture_output=True, text=True)
        command = f"python benchmarks/ablations.py --base {base} --seeds {options.seeds}"
        found = {"command": command, "commit": options.commit, "paired": paired(names[0], trained)}
        (out / f"ablations-{base}.json").write_text(json.dumps(found | json.loads(plain.stdout)) + "\n")
        print(drawn.stdout)


if __name__ == "__main__":
    main()
