"""Population-based training against plain Optuna at equal environment steps: several studies of one experiment.

    python benchmarks/pbt.py [--studies 5] [--members 8] [--steps 12288] [--agilerl PYTHON] [--out FILE.json]

All train MEMBERS policies for STEPS steps each, and search the same real-valued settings of the learner. Optuna's
trials are not pruned, so that everybody takes all steps. A study's score is the held-out greedy return of the policy
that did best in validation. With `--agilerl`, an interpreter that has AgileRL, its evolutionary search takes the same
steps (`peers/agilerl_population.py`). Prints every study, the means, and bootstrap intervals of paired differences.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interleave import HERE, measure, write

from coterie.studies.tune.population import tune_population
from coterie.studies.tune.tune import Plan, tune

SEARCHED = ("*.learning_rate", "*.gae_lambda", "*.clip", "*.entropy_coefficient", "*.max_grad_norm")
SHORT = ("train.rollout_steps=64", "groups.agent.learner.minibatches=8")  # 1,024 steps per iteration, 128 per minibatch
QUICK = ("train.evaluate_episodes=32", "train.video=false", "train.tensorboard=false", "train.evaluate_every=1000000")
EXPERIMENT = "lunarlander-ppo"  # 12,288 steps are too few to solve it, so that searches differ


def plan_of(sampler: str, seed: int, options: argparse.Namespace) -> Plan:
    """The study of a sampler."""
    study = str(Path(options.runs) / f"{sampler}-{seed}" / "study.db")
    words = (*QUICK, *SHORT, f"train.total_steps={options.steps}", f"seed={1000 * seed}")
    more = {"sampler": "pbt", "rounds": options.rounds} if sampler == "pbt" else {"pruner": "none"}
    return Plan(EXPERIMENT, words, options.members, study, SEARCHED, **more)


def score_of_pbt(seed: int, options: argparse.Namespace) -> float | None:
    return tune_population(plan_of("pbt", seed, options)).population.best.held_out


def score_of_tpe(seed: int, options: argparse.Namespace) -> float | None:
    best = tune(plan_of("tpe", seed, options)).best
    return None if best is None else best.held_out


def score_of_agilerl(seed: int, options: argparse.Namespace) -> float | None:
    sizes = {name: getattr(options, name) for name in ("members", "rounds", "steps")}
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [options.agilerl, str(HERE / "peers" / "agilerl_population.py"), *words, "--seed", str(seed)]
    return measure(command)["held_out"]


def all_scores(
    name: str, search: Callable[[int, argparse.Namespace], float | None], options: argparse.Namespace
) -> list[float]:
    """The scores of every study of a search; those that an earlier start has found are read from a file."""
    sizes = f"{options.members}x{options.steps}x{options.rounds}"
    file = Path(options.runs) / f"{name}-{sizes}.json"
    scores: list[float] = json.loads(file.read_text()) if file.is_file() else []
    for seed in range(len(scores), options.studies):
        found = search(seed, options)
        assert found is not None
        scores.append(found)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(scores) + "\n")
        shutil.rmtree(Path(options.runs) / f"{name}-{seed}", ignore_errors=True)
        print(f"{name}, study {seed}: {found:.1f}", flush=True)
    return scores[: options.studies]


def difference(one: list[float], other: list[float]) -> dict[str, object]:
    """The mean of paired differences and its 95% interval by bootstrap over the studies."""
    gap = np.subtract(one, other)
    drawn = np.random.default_rng(0).choice(gap, (10_000, len(gap))).mean(axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {"mean": float(gap.mean()), "ci95": [float(low), float(high)]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12_288)
    parser.add_argument("--agilerl", help="an interpreter that has AgileRL")
    parser.add_argument("--runs", default="runs/bench-pbt")
    parser.add_argument("--out")
    options = parser.parse_args()
    searches: dict[str, Callable[[int, argparse.Namespace], float | None]] = {"pbt": score_of_pbt, "tpe": score_of_tpe}
    if options.agilerl:
        searches["agilerl"] = score_of_agilerl
    scores = {name: all_scores(name, search, options) for name, search in searches.items()}
    means = {name: float(np.mean(found)) for name, found in scores.items()}
    gaps = {f"pbt - {name}": difference(scores["pbt"], scores[name]) for name in scores if name != "pbt"}
    for name, mean in means.items():
        print(f"{name:8} mean {mean:8.1f}")
    for name, gap in gaps.items():
        print(f"{name}: {gap['mean']:.1f}, 95% interval {gap['ci95']}")
    settings = {name: getattr(options, name) for name in ("studies", "members", "rounds", "steps")}
    write({"experiment": EXPERIMENT, **settings, "scores": scores, "means": means, "differences": gaps}, options.out)


if __name__ == "__main__":
    main()
