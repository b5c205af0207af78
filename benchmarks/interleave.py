"""What benchmarks side by side share: contestants as processes that take turns, and where our own time goes.

Each measurement is a process of its own on one thread that prints one JSON line, and the contestants take
turns, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import cProfile
import io
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Figures = dict[str, float]  # what one measurement found, by name


def commit() -> str:
    """Which version this is."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def demand_cuda() -> None:
    """End with one sentence on a machine without a GPU."""
    import torch  # most benchmarks here do not need it

    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and PyTorch finds no CUDA device")


def measure(command: Sequence[str]) -> Figures:
    """One contestant, once."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_THREAD, cwd=HERE.parent)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def take_turns(contestants: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[Figures]]:
    """Everybody in turns, each round with a seed of its own."""
    found: dict[str, list[Figures]] = {name: [] for name in contestants}
    for seed in range(rounds):
        for name, command in contestants.items():
            found[name].append(measure([*command, "--seed", str(seed)]))
    return found


def medians(found: Mapping[str, Sequence[Figures]]) -> dict[str, Figures]:
    """Of every figure of every contestant, the median over the rounds."""
    return {
        name: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for name, rounds in found.items()
    }


def ratios(found: Mapping[str, Figures], key: str) -> dict[str, float]:
    """How many times the first contestant's figure is that of each other one."""
    ours, *peers = found
    return {name: round(found[ours][key] / found[name][key], 2) for name in peers}


def race(env: str, contestants: Mapping[str, Sequence[str]], steps: int, rounds: int) -> dict[str, object]:
    """Training runs on one environment, ours first: medians as rows of a table, and how much faster ours is."""
    words = ["--env", env, "--steps", str(steps)]
    found = medians(take_turns({name: [*command, *words] for name, command in contestants.items()}, rounds))
    ours = next(iter(found.values()))["steps_per_s"]
    for name, one in found.items():
        ratio = f"{ours / one['steps_per_s']:.1f}×"
        row = f"{env:16}{name:20}{one['steps_per_s']:10,.0f}{ratio:>9}{one['return_100']:12.1f}"
        print(f"{row}{one['memory_mb']:7.0f} MB", flush=True)
    return {"measured": found, "ratios": ratios(found, "steps_per_s")}


RACE_HEAD = f"{'':16}{'':20}{'steps/s':>10}{'ours is':>9}{'return_100':>12}{'memory':>10}"


def profile(experiment: str, overrides: Sequence[str]) -> str:
    """Where the time of our own training goes, by function; compiled code has been loaded before."""
    import coterie

    with tempfile.TemporaryDirectory() as folder:
        coterie.train(experiment, overrides, out=f"{folder}/warm", quiet=True)
        profiler = cProfile.Profile()
        profiler.runcall(coterie.train, experiment, overrides, out=f"{folder}/run", quiet=True)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(14)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


def write(summary: Mapping[str, object], out: str | None) -> None:
    """One JSON line on the screen, and the same, indented, as a file where one is asked for; with its origin."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    summary = {"commit": commit(), "command": command} | dict(summary)
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\n{json.dumps(summary)}")
