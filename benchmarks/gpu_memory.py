"""Training that runs out of GPU memory goes on with smaller batches, and learns the same.

    python benchmarks/gpu_memory.py [--start RUN] [--out docs/results/gpu-memory.json]

Trains `plan-path-smollm` for two iterations, first with all of the GPU's memory, then with parts of what that needed.
Products are float32, so that other batch sizes change little more than the last digits. Prints the peak memory, the
warnings, and how far the metrics of the second iteration are from those of the first run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from interleave import commit, demand_cuda

from coterie.runs.run import Run

PROGRAM = """
import sys, torch
torch.cuda.set_per_process_memory_fraction(float(sys.argv.pop(1)))
from coterie.cli import main
try:
    main()
finally:
    print("peak", torch.cuda.max_memory_reserved(), torch.cuda.get_device_properties(0).total_memory, file=sys.stderr)
"""
COMPARED = ("team/score", "team/loss", "team/token_entropy", "team/grad_norm", "team/tokens")


def train(start: str, fraction: float, folder: Path) -> dict[str, Any]:
    """Two iterations with this fraction of the GPU's memory."""
    words = [
        *("train", "plan-path-smollm", f"groups.team.start={start}", "groups.team.policy.precision=float32"),
        *("groups.team.learner.minibatch_size=512", "groups.team.learner.microbatch_size=512"),
        *("train.num_envs=512", "train.total_steps=8192", "train.evaluate_every=1000", "train.evaluate_episodes=10"),
        *("train.best=last", "train.video=false", "train.tensorboard=false", "--out", str(folder), "--quiet"),
    ]
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(fraction), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    _, peak, total = next(line for line in done.stderr.splitlines() if line.startswith("peak")).split()
    record = list(Run.open(folder).metrics())[-1]
    return {
        "fraction": fraction,
        "peak_gb": round(int(peak) / 1e9, 2),
        "needs": int(peak) / int(total),
        "warnings": [line for line in done.stderr.splitlines() if "out of GPU memory" in line],
        "metrics": {name: record[name] for name in COMPARED},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", default="null", help="a warm start of plan-path-smollm")
    parser.add_argument("--parts", type=float, nargs="*", default=[0.7, 0.4], help="of the memory that was needed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    demand_cuda()
    with tempfile.TemporaryDirectory() as folder:
        found = [train(options.start, 1.0, Path(folder) / "whole")]
        for part in options.parts:
            found.append(train(options.start, found[0]["needs"] * part, Path(folder) / f"part-{part}"))
    for one in found:
        apart = {name: abs(one["metrics"][name] - found[0]["metrics"][name]) for name in COMPARED}
        one["apart"] = max(value / max(abs(found[0]["metrics"][name]), 1e-9) for name, value in apart.items())
        print(json.dumps(one), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"commit": commit(), "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
