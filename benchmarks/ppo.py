"""PPO against its peers on CartPole and LunarLander: one thread, interleaved, the same settings for all.

    python benchmarks/ppo.py [--rounds 3] [--steps 100000] [--out docs/results/bench-ppo.json]

Each measurement is a process of its own, and the contestants take turns, so that a busy machine slows all
of them alike. Prints a table of medians, a profile of our own run, and one JSON line.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CONTESTANTS = {
    "coterie": HERE / "ours_ppo.py",
    "stable-baselines3": HERE / "peers" / "sb3_ppo.py",
    "plain loop": HERE / "peers" / "plain_ppo.py",
}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure(script: Path, env: str, steps: int, seed: int) -> dict[str, float]:
    """One contestant, once."""
    command = [sys.executable, str(script), "--env", env, "--steps", str(steps), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_THREAD, cwd=HERE.parent)
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compete(env: str, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Everybody in turns; medians over the rounds, each with a seed of its own."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for seed in range(rounds):
        for name, script in CONTESTANTS.items():
            found[name].append(measure(script, env, steps, seed))
    return {
        name: {key: statistics.median(one[key] for one in results) for key in results[0]}
        for name, results in found.items()
    }


def profile(env: str) -> str:
    """Where our own time goes, by function."""
    import coterie

    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"world.name=gymnasium/{env}", "train.total_steps=51200"]
        coterie.train("benchmarks/ppo.yaml", overrides, out=f"{folder}/warm", quiet=True)
        profiler = cProfile.Profile()
        profiler.runcall(coterie.train, "benchmarks/ppo.yaml", overrides, out=f"{folder}/run", quiet=True)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(14)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "LunarLander-v3"])
    parser.add_argument("--out")
    options = parser.parse_args()
    summary: dict[str, object] = {"steps": options.steps, "rounds": options.rounds}
    print(f"{'':16}{'':20}{'steps/s':>10}{'ours is':>9}{'return_100':>12}{'memory':>10}")
    for env in options.envs:
        found = compete(env, options.steps, options.rounds)
        ours = found["coterie"]["steps_per_s"]
        for name, one in found.items():
            ratio = f"{ours / one['steps_per_s']:.1f}×"
            row = f"{env:16}{name:20}{one['steps_per_s']:10,.0f}{ratio:>9}{one['return_100']:12.1f}"
            print(f"{row}{one['memory_mb']:7.0f} MB")
        peers = {name: one for name, one in found.items() if name != "coterie"}
        ratios = {name: round(ours / one["steps_per_s"], 2) for name, one in peers.items()}
        summary[env] = {"measured": found, "ratios": ratios}
    for env in options.envs:
        print(f"\nprofile of our run on {env}\n{profile(env)}")
    line = json.dumps(summary)
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\n{line}")


if __name__ == "__main__":
    main()
