"""Teams of SmolLM2-135M on one GPU: warm start, AT-GRPO and its baselines, at the same sampled tokens.

    python benchmarks/gpu_teams_study.py plan-path-5 --tokens 2000000 --jobs 4 --out docs/results/teams-gpu.json
    python benchmarks/gpu_teams_study.py --add FILE… --commit COMMIT --out docs/results/teams-gpu.json

Every arm starts from a warm start of its own roles (transcripts of the scripted solver, `coterie clone`) and trains
until so many tokens were sampled. Scores are those of the runs' summaries: greedy, 200 instances for tests, of the last
policy (`success`) and of the one that was best in validation instances (`best`).
What is already trained is kept, and so are demonstrations (`--record` makes them on a machine without a GPU). The
commands are part of the results. `--out` replaces rows of the same study, arm, seed and warm start in the file and
keeps the others; `--add` takes them from files of another machine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from interleave import commit, demand_cuda

from coterie.runs.run import Run
from coterie.studies import figures
from coterie.studies.statistics import Estimate

TEAM = "groups.team"
PLAIN = ["train.video=false", "train.tensorboard=false"]
EPISODES = [  # as many answers in an optimiser step as 32 prompts with 8 candidates have
    *(f"{TEAM}.learner.groups=episode", f"{TEAM}.policy.candidates=1", f"{TEAM}.learner.minibatch_size=256"),
    *("world.group_size=8", "world.wait=true"),
]


@dataclass(frozen=True)
class Study:
    """An experiment, its difficulty, and how much a model of this size needs."""

    experiment: str
    settings: list[str]
    warm_up: int  # demonstrated answers read, about once each
    per_episode: int  # the solver's answers in an episode of a team, about
    longest: int  # tokens of the solver's longest answer
    turns: int = 4  # of an episode
    alone: str = "planner"  # the role that plays when there is one agent
    mistakes: float = 0.2  # share of the solver's decisions that are guesses, which are not learned
    arms: tuple[str, ...] = ()  # none: all


KEPT = ("unreadable", "score", "flat_groups", "token_entropy", "tokens_per_answer", "turns")  # of the last record
SHORT = ("untrained", "AT-GRPO, shared", "AT-GRPO, adapters", "plain GRPO")
STUDIES = {
    "plan-path-5": Study("plan-path-smollm", [], 32_000, 4, 24, turns=8),
    "plan-path-10": Study(
        "plan-path-smollm",
        [
            "world.size=10",
            "world.turns=16",
            f"{TEAM}.policy.max_prompt_tokens=224",
            f"{TEAM}.learner.learning_rate=1.5e-5",
        ],
        *(256_000, 8, 48),
        turns=16,
    ),
    "sudoku-4": Study("sudoku-smollm", [], 64_000, 2, 24, arms=SHORT),
    "sokoban-1": Study("sokoban-smollm", [], 128_000, 2, 48, arms=SHORT),
    "math": Study("math-smollm", [], 500, 2, 40, alone="reasoner", mistakes=0.0, arms=SHORT),
}
SEPARATE = [f"{TEAM}.parameters=individual", f"{TEAM}.learner.learning_rate=2e-5"]
ADAPTERS = [f"{TEAM}.parameters=individual", f"{TEAM}.policy.weights=lora", f"{TEAM}.learner.learning_rate=1e-4"]


def arms_of(study: Study) -> dict[str, list[str]]:
    """Arm -> overrides; every arm samples about as many answers in an iteration."""
    alone = [f"world.roles=[{study.alone}]"]
    whole, half = f"train.rollout_steps={2 * study.turns}", f"train.rollout_steps={study.turns}"
    every = {
        "untrained": [],
        "AT-GRPO, shared": [],
        "AT-GRPO, adapters": ADAPTERS,
        "AT-GRPO, separate": SEPARATE,
        "plain GRPO": [*EPISODES, "train.num_envs=1024", whole],
        "single agent, AT-GRPO": [*alone, "train.num_envs=256", "train.rollout_steps=4"],
        "single agent, plain GRPO": [*alone, *EPISODES, "train.num_envs=2048", half],
    }
    return {name: every[name] for name in study.arms or every}


def coterie(*words: str) -> str:
    """Run the command line; its output is shown if it fails."""
    program = [sys.executable, "-c", "from coterie.cli import main; main()"]
    done = subprocess.run([*program, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"coterie {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


@dataclass(frozen=True)
class WarmStart:
    """Commands that record the scripted solver's answers and clone them, for one seed and some roles."""

    name: str
    record: list[str]
    learn: list[str]
    demonstrations: Path
    run: Path


def warm_start(study: Study, words: list[str], seed: int, folder: Path) -> WarmStart:
    """The warm start of an arm with these overrides."""
    roles = [word for word in words if word.startswith("world.roles")]
    name = f"{'alone' if roles else 'team'}-{study.warm_up}-{seed}"
    demos, out = folder / f"demonstrations-{name}", folder / f"warm-{name}"
    common = [study.experiment, *roles, *study.settings, f"{TEAM}.policy.max_tokens={study.longest}"]
    episodes = study.warm_up // study.per_episode * (2 if roles else 1)
    record = [
        *("demonstrate", *common, "--policy", f"expert:mistakes={study.mistakes}", "--episodes", str(episodes)),
        *("--seed", str(1000 + seed), "--out", str(demos), "--quiet"),
    ]
    steps = [f"train.total_steps={study.warm_up}", f"train.rollout_steps={study.warm_up // 16}", f"seed={seed}"]
    learn = [
        *("clone", *common, *steps, *PLAIN, "train.evaluate_every=16"),
        *(f"{TEAM}.learner.learning_rate=2e-4", f"{TEAM}.learner.batch_size=64"),
        *("--demonstrations", str(demos), "--out", str(out), "--quiet"),
    ]
    return WarmStart(name, record, learn, demos, out)


def make(warm: WarmStart) -> None:
    """Record and clone, unless that was done before or is being done."""
    folder = warm.run.parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"warm-{warm.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another study may be at it
        if not (warm.run / "summary.json").exists():
            shutil.rmtree(warm.run, ignore_errors=True)
            coterie(*warm.record)  # goes on where it was
            coterie(*warm.learn)


@dataclass(frozen=True)
class Budget:
    """How long arms train, with which further settings, and where they are kept."""

    tokens: int
    folder: Path
    more: list[str]
    label: str  # of runs with further settings
    discard: bool  # delete checkpoints once results are read


def train(study: Study, arm: str, seed: int, budget: Budget) -> dict[str, Any]:
    """Train one arm, if need be, and read its results."""
    words, folder = arms_of(study)[arm], budget.folder
    out = folder / (arm.replace(", ", "-").replace(" ", "-") + budget.label) / f"seed={seed}"
    warm = None if arm == "untrained" else warm_start(study, words, seed, folder)
    if warm is not None:
        make(warm)
    start = "null" if warm is None else str(warm.run)
    command = [
        *("train", study.experiment, *study.settings, *words, *budget.more, f"{TEAM}.start={start}", f"seed={seed}"),
        *(f"{TEAM}.learner.token_budget={budget.tokens}", "train.total_steps=100000000", *PLAIN),
        *("--out", str(out), "--quiet"),
    ]
    if arm == "untrained":
        command = [word if "token_budget" not in word else f"{TEAM}.learner.token_budget=1" for word in command]
    if not (out / "summary.json").exists():
        coterie(*command)
    run = Run.open(out)
    summary, records = run.summary(), list(run.metrics())
    assert summary is not None
    read = [r for r in records if "eval/success_rate" in r]
    if budget.discard:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return {
        "arm": arm + budget.label,
        "seed": seed,
        "warm_up": 0 if arm == "untrained" else study.warm_up,
        "step_0": summary["step_0"]["success_rate"],
        "success": summary["last"]["success_rate"],
        "best": summary["evaluation"]["success_rate"],
        "baselines": {name: one["success_rate"] for name, one in summary["baselines"].items()},
        "tokens": records[-1]["team/tokens"],
        "seconds": summary["wall_s"],
        "warm_up_seconds": None if warm is None else (Run.open(start).summary() or {})["wall_s"],
        "curve": [(r.get("team/tokens", 0), r["wall_s"], r["eval/success_rate"]) for r in read],
        "last": {k: v for k, v in records[-1].items() if any(word in k for word in KEPT)},
        "commands": [
            " ".join(["coterie", *words]) for words in ([] if warm is None else [warm.record, warm.learn]) + [command]
        ],
    }


LAST = ("world/turns", "team/score", "team/chosen_score", "team/flat_groups", "team/token_entropy", "eval/turns")


def row_of(study: str, at: str, one: dict[str, Any]) -> dict[str, Any]:
    """A result as docs/results keeps it: rounded, without scores turn by turn."""
    last = {k: v for k, v in one["last"].items() if k in LAST or (k.startswith("eval/") and k.endswith("unreadable"))}
    return {
        **{"study": study, "arm": one["arm"], "seed": one["seed"], "commit": at, "warm_up": one["warm_up"]},
        "validation": [[tokens, round(seconds, 1), success] for tokens, seconds, success in one["curve"]],
        **{"test_step_0": one["step_0"], "test": one["success"], "test_best": one["best"]},
        **{"baselines": one["baselines"], "tokens": round(one["tokens"]), "seconds": round(one["seconds"])},
        "warm_up_seconds": one["warm_up_seconds"],
        "last": {name: round(value, 4) for name, value in last.items()},
        "commands": one["commands"],
    }


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put rows into a file of results, each in the place of the one of the same study, arm, seed and warm start."""

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("study", "arm", "seed", "warm_up"))

    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another study may write there
        found = json.loads(path.read_text()) if path.exists() else {"results": []}
        kept = {place(row): row for row in [*found["results"], *rows]}
        found["results"] = sorted(kept.values(), key=lambda row: (list(STUDIES).index(row["study"]), row["seed"]))
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    path.with_suffix(".lock").unlink()


TITLES = {
    "plan-path-5": "Plan-Path 5×5",
    "plan-path-10": "Plan-Path 10×10",
    "sudoku-4": "Sudoku 4×4",
    "sokoban-1": "Sokoban, one box",
    "math": "math, two digits",
}


def draw(found: dict[str, Any]) -> bytes:
    """Success in validation instances against sampled tokens and against minutes.

    A row for each study, every arm from its largest warm start; the last row has AT-GRPO from warm starts of all sizes.
    """
    from matplotlib.figure import Figure

    shown = [one for one in found["results"] if one["seed"] == 0 and one["arm"] != "untrained"]
    shown.sort(key=lambda one: one["warm_up"])
    largest = {(one["study"], one["arm"]): one for one in shown}
    arms = list(dict.fromkeys(one["arm"] for one in found["results"] if one in shown))
    studies = [name for name in TITLES if any(one["study"] == name for one in shown)]
    sizes = [one for one in shown if (one["study"], one["arm"]) == ("plan-path-5", "AT-GRPO, shared")]
    figure = Figure(figsize=(11, 2.4 * len(studies) + 3), layout="constrained")
    panels = figure.subplots(len(studies) + 1, 2, squeeze=False, sharey="row")
    for row, study in zip(panels, studies, strict=False):
        lines = {name: one for name in arms if (one := largest.get((study, name))) is not None}
        draw_row(row, TITLES[study], lines, {name: figures.colour(arms.index(name)) for name in lines})
        row[0].set_ylim(0.7, 1.01)  # all of it happens there
    warm = {f"{one['warm_up']:,} answers": one for one in sizes}
    colours = {name: figures.colour(number) for number, name in enumerate(warm)}
    draw_row(panels[-1], f"{TITLES['plan-path-5']}, AT-GRPO, shared, after…", warm, colours)
    panels[-1][0].legend(frameon=False, fontsize=8, loc="lower right")
    panels[-1][0].set_xlabel("sampled tokens, millions")
    panels[-1][1].set_xlabel("minutes, GPU shared by up to 13 runs")
    every = {line.get_label(): line for axes in panels[:-1, 0] for line in axes.get_lines()}
    figure.legend([every[name] for name in arms], arms, loc="outside right upper", frameon=False, fontsize=8)
    return figures.as_png(figure)


def draw_row(row: Any, title: str, lines: dict[str, dict[str, Any]], colours: dict[str, str]) -> None:
    """The same results against tokens, on the left, and against minutes."""
    for name, one in lines.items():
        tokens, seconds, success = np.array(one["validation"]).T
        for axes, x in zip(row, (tokens / 1e6, seconds / 60), strict=True):
            series = figures.Series(name, colours[name], x, Estimate(success, success, success))
            figures.draw_series(axes, series, band=False)
    for axes in row:
        figures.label_panel(axes, title, "", "greedy success" if axes is row[0] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES), nargs="?")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs/teams-gpu"))
    parser.add_argument("--warm-up", type=int, help="demonstrated answers of the warm start, in place of the study's")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, to try them")
    parser.add_argument("--label", default="", help="added to the names of arms, for runs with further settings")
    parser.add_argument("--discard", action="store_true", help="delete checkpoints of arms once results are read")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, on the same GPU")
    parser.add_argument("--record", action="store_true", help="only record demonstrations, which needs no GPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], help="train nothing; put these files' rows into --out"
    )
    parser.add_argument("--commit", help="of the code that trained, where it is not this one")
    options = parser.parse_args()
    at = options.commit or commit()
    if options.add:
        for path in options.add:
            found = json.loads(path.read_text())
            keep(
                options.out,
                [one if "validation" in one else row_of(found["study"], at, one) for one in found["results"]],
            )
        return
    if options.study is None:
        parser.error("name a study, or files with --add")
    if not options.record:
        demand_cuda()
    study, folder = STUDIES[options.study], options.runs / options.study
    if options.warm_up:
        study, folder = replace(study, warm_up=options.warm_up), folder / f"warm-up-{options.warm_up}"
    jobs = [(arm, seed) for seed in options.seeds for arm in options.arms or arms_of(study)]
    begun = time.perf_counter()
    starts = {(arm.startswith("single"), seed): arm for arm, seed in jobs if arm != "untrained"}
    with ThreadPoolExecutor(options.jobs) as pool:  # arms share them
        ready = [warm_start(study, arms_of(study)[arm], seed, folder) for (_, seed), arm in starts.items()]
        if options.record:
            folder.mkdir(parents=True, exist_ok=True)
            list(pool.map(lambda warm: coterie(*warm.record), ready))
            return
        list(pool.map(make, ready))
    print(f"{time.perf_counter() - begun:6.0f} s", options.study, "warm starts", flush=True)
    budget = Budget(options.tokens, folder, options.set, options.label, options.discard)
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(train, study, arm, seed, budget) for arm, seed in jobs]):
            one = done.result()
            shown = {k: one[k] for k in ("arm", "seed", "step_0", "success", "best", "tokens", "seconds")}
            print(f"{time.perf_counter() - begun:6.0f} s", options.study, shown, flush=True)
            if options.out:
                keep(options.out, [row_of(options.study, at, one)])


if __name__ == "__main__":
    main()
