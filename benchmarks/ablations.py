"""The effect of each improvement: an experiment with and without it, over several seeds.

    python benchmarks/ablations.py --base cartpole --seeds 5 --runs runs/learning

Trains what is not there yet with the product's own command, then writes ablations-BASE.json, .txt and .png by
`coterie compare`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from interleave import commit
from learning import train

from coterie.config.schema import experiments
from coterie.studies.compare import show

WHOLE = {"cartpole": "cartpole-dqn", "lunarlander": "lunarlander-dqn", "spread": "spread-qmix"}
THRESHOLD = {"cartpole": 475, "lunarlander": 200, "spread": -12}


def draw(found: dict[str, Any]) -> bytes:
    """The figure of a comparison, from its file of results; files of 0.1 call variants contenders."""
    return show.draw_picture(show.picture_from_dict({"variants": found.get("contenders"), **found}))


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
        for name in names:
            train(name, options.seeds, folder)
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
        found = {"command": command, "commit": options.commit}
        (out / f"ablations-{base}.json").write_text(json.dumps(found | json.loads(plain.stdout)) + "\n")
        print(drawn.stdout)


if __name__ == "__main__":
    main()
