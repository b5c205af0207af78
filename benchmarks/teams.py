"""Teams of tiny language models on Plan-Path 4x4: AT-GRPO beside plain GRPO and a single agent, at the same tokens.

    python benchmarks/teams.py --seeds 0 1 2 --tokens 2000000 --runs runs/teams

Every arm starts from a warm start of its own roles (transcripts of the scripted solver, `coterie clone`) and trains
until so many tokens were sampled, about as many per iteration in every arm. Scores are greedy on 200 held-out
instances. Writes docs/results/teams-plan-path.json and .png. What is already trained is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from interleave import commit

from coterie.runs.run import Run
from coterie.studies import figures
from coterie.studies.statistics import Estimate

PLAIN = ["train.video=false", "train.tensorboard=false"]
TEAM = "groups.team"
EPISODES = [
    *(f"{TEAM}.learner.groups=episode", f"{TEAM}.policy.candidates=1"),
    *(f"{TEAM}.learner.minibatch_size=256", f"{TEAM}.learner.microbatch_size=256"),  # as many answers in a step
]
ALONE = ["world.roles=[planner]"]
WHOLE_PATH = f"{TEAM}.policy.max_tokens=12"
ONE_TURN = [*ALONE, "world.turns=1", "world.max_moves=0", WHOLE_PATH, "train.rollout_steps=1", "train.num_envs=256"]
MULTI_TURN = [*ALONE, "train.rollout_steps=8", "train.num_envs=128"]
ARMS: dict[str, tuple[str, list[str]]] = {  # name -> experiment, overrides
    "AT-GRPO, shared": ("plan-path-shared", []),
    "AT-GRPO, separate": ("plan-path-separate", []),
    "AT-GRPO, adapters": ("plan-path-adapters", []),
    "plain GRPO": ("plan-path-shared", [*EPISODES, "world.group_size=8", "train.num_envs=512"]),
    "single agent": ("plan-path-shared", ONE_TURN),
    "single agent, multi-turn": ("plan-path-shared", MULTI_TURN),
    "first branch": ("plan-path-shared", [f"{TEAM}.policy.choose=first"]),
    "best branch": ("plan-path-shared", [f"{TEAM}.policy.choose=best"]),
    "sparse rewards": ("plan-path-shared", ["world.reward=sparse"]),
}
DEMONSTRATIONS = 300  # episodes of the solver
WARM_UP = 2400  # answers read


def coterie(*words: str) -> None:
    """Run the command line; its output is shown if it fails."""
    program = [sys.executable, "-c", "from coterie.cli import main; main()"]
    done = subprocess.run([*program, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"coterie {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def kind_of_start(words: list[str]) -> list[str]:
    """The overrides that change what a warm start learns: who plays, and how."""
    return [word for word in words if word.startswith(("world.roles", "world.turns", "world.max_moves"))]


def warm_start(words: list[str], seed: int, folder: Path) -> Path:
    """A clone of the scripted solver's answers, for this seed and these roles."""
    kind = kind_of_start(words)
    name = "-".join(word.partition("=")[2].strip("[]") for word in kind) or "team"
    demos, out = folder / f"demonstrations-{name}-{seed}", folder / f"warm-{name}-{seed}"
    if not (out / "summary.json").exists():
        common = ["plan-path-shared", *kind]
        coterie(
            *("demonstrate", *common, "--policy", "expert", "--episodes", str(DEMONSTRATIONS)),
            *("--seed", str(1000 + seed), "--out", str(demos), "--quiet"),
        )
        steps = [f"train.total_steps={WARM_UP}", f"train.rollout_steps={WARM_UP}", f"seed={seed}", *PLAIN]
        steps.append(WHOLE_PATH)  # the solver's proposals are longer than the answers that training samples
        coterie("clone", *common, *steps, "--demonstrations", str(demos), "--out", str(out), "--quiet")
    return out


def train(arm: str, seed: int, tokens: int, folder: Path, settings: list[str]) -> dict[str, Any]:
    """Train one arm, if need be, and read its results."""
    experiment, words = ARMS[arm]
    out = folder / arm.replace(", ", "-").replace(" ", "-") / f"seed={seed}"
    start = warm_start(words, seed, folder)
    command = [experiment, *words, *settings, f"{TEAM}.start={start}", f"{TEAM}.learner.token_budget={tokens}"]
    if not (out / "summary.json").exists():
        more = [f"seed={seed}", "train.total_steps=100000000", "train.best=last", *PLAIN]
        coterie("train", *command, *more, "--out", str(out), "--quiet")
    run = Run.open(out)
    summary, records = run.summary(), list(run.metrics())
    assert summary is not None
    curve = [(r.get("team/tokens", 0), r["eval/success_rate"]) for r in records if "eval/success_rate" in r]
    return {
        "arm": arm,
        "seed": seed,
        "step_0": summary["step_0"]["success_rate"],
        "success": summary["last"]["success_rate"],
        "random": summary["baselines"]["random"]["success_rate"],
        "guess": summary["baselines"]["guess"]["success_rate"],
        "expert": summary["baselines"]["expert"]["success_rate"],
        "tokens": records[-1]["team/tokens"],
        "seconds": summary["wall_s"],
        "curve": curve,
    }


def draw(found: dict[str, Any]) -> bytes:
    """Success against sampled tokens: the mean over seeds of each arm, and a small panel with the range of each."""
    from matplotlib.figure import Figure

    lines = []
    for number, arm in enumerate(dict.fromkeys(one["arm"] for one in found["results"])):
        curves = [np.array(one["curve"]) for one in found["results"] if one["arm"] == arm and one["curve"]]
        if not curves:
            continue
        grid = np.linspace(0, min(curve[-1, 0] for curve in curves), 60)
        values = np.array([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in curves])
        spread = Estimate(values.mean(axis=0), values.min(axis=0), values.max(axis=0))
        dashes = number // len(figures.COLOURS)
        lines.append(figures.Series(arm, figures.colour(number), grid / 1e6, spread, dash=dashes))
    columns = 5
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(11, 4.2 + 1.9 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, 1, height_ratios=[4.2, *[1.9] * rows])
    axes = figure.add_subplot(grid[0])
    for one in lines:
        figures.draw_series(axes, one, band=False)
    title, tokens = "Plan-Path 4×4, mean over seeds", "sampled tokens, millions"
    figures.label_panel(axes, title, tokens, "greedy success, validation")
    axes.set_ylim(-0.03, 1.03)
    figures.put_legend(axes, "right")
    for row in range(rows):
        cells = grid[1 + row].subgridspec(1, columns)
        for column, one in enumerate(lines[row * columns : (row + 1) * columns]):
            small = figure.add_subplot(cells[column])
            for other in lines:
                small.plot(other.x, other.estimate.value, color="#cccccc", linewidth=0.8)
            figures.draw_series(small, one)
            figures.label_panel(small, "", "", "")
            small.set_title(one.label, loc="left", fontsize=9, fontweight="bold")
            small.set_ylim(-0.03, 1.03)
            small.tick_params(labelsize=7)
    figure.supxlabel("Small panels: every arm with the range of its seeds.", fontsize=8, color=figures.TEXT)
    return figures.as_png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/teams"))
    parser.add_argument("--set", nargs="*", default=[], help="further settings, to try them")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("docs/results/teams-plan-path.json"))
    options = parser.parse_args()
    jobs = [(arm, seed) for seed in options.seeds for arm in options.arms]
    for arm, seed in jobs:  # one after the other: arms share warm starts
        warm_start(ARMS[arm][1], seed, options.runs)
    found: list[dict[str, Any]] = []
    begun = time.perf_counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for one in pool.map(lambda job: train(*job, options.tokens, options.runs, options.set), jobs):
            found.append(one)
            shown = {k: one[k] for k in ("arm", "seed", "step_0", "success", "tokens", "seconds")}
            print(f"{time.perf_counter() - begun:6.0f} s", shown, flush=True)
            command = (
                f"python benchmarks/teams.py --seeds {' '.join(map(str, options.seeds))} --tokens {options.tokens}"
            )
            about = {"command": command, "commit": commit(), "results": found}
            options.out.write_text(json.dumps(about, indent=1) + "\n")
    options.out.with_suffix(".png").write_bytes(draw(about))


if __name__ == "__main__":
    main()
