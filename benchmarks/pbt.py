"""Population-based training against plain Optuna at equal environment steps: several studies of one experiment.

    python benchmarks/pbt.py [--studies 5] [--members 8] [--steps 4096] [--out docs/results/bench-pbt.json]

Both train MEMBERS policies for STEPS steps each, and search the same real-valued settings of the learner. Optuna's
trials are not pruned, so that everybody takes all steps. A study's score is the held-out greedy return of the policy
that did best in validation. Prints every study, the means, and a bootstrap interval of the paired difference.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from interleave import write

from coterie.studies.tune.population import tune_population
from coterie.studies.tune.tune import Plan, tune

SEARCHED = ("*.learning_rate", "*.gae_lambda", "*.clip", "*.entropy_coefficient", "*.max_grad_norm")
QUICK = ("train.evaluate_episodes=32", "train.video=false", "train.tensorboard=false", "train.evaluate_every=1000000")


def score_of(sampler: str, seed: int, options: argparse.Namespace) -> float:
    """The held-out score of one study."""
    folder = Path(options.runs) / f"{sampler}-{seed}"
    words = (*QUICK, f"train.total_steps={options.steps}", f"seed={1000 * seed}")
    study, count = str(folder / "study.db"), options.members
    if sampler == "pbt":
        plan = Plan(options.experiment, words, count, study, SEARCHED, sampler="pbt", rounds=options.rounds)
        found = tune_population(plan).population.best.held_out
    else:
        best = tune(Plan(options.experiment, words, count, study, SEARCHED, pruner="none")).best
        found = None if best is None else best.held_out
    shutil.rmtree(folder, ignore_errors=True)
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment", default="cartpole-ppo")
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4_096)
    parser.add_argument("--runs", default="runs/bench-pbt")
    parser.add_argument("--out")
    options = parser.parse_args()
    scores: dict[str, list[float]] = {"pbt": [], "tpe": []}
    for seed in range(options.studies):
        for sampler, found in scores.items():
            found.append(score_of(sampler, seed, options))
        print(f"study {seed}: pbt {scores['pbt'][-1]:8.2f}  tpe {scores['tpe'][-1]:8.2f}", flush=True)
    gap = np.subtract(scores["pbt"], scores["tpe"])
    drawn = np.random.default_rng(0).choice(gap, (10_000, len(gap))).mean(axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    means = {sampler: float(np.mean(found)) for sampler, found in scores.items()}
    print(f"mean: pbt {means['pbt']:.2f}, tpe {means['tpe']:.2f}; pbt − tpe {gap.mean():.2f} [{low:.2f}, {high:.2f}]")
    settings = {name: getattr(options, name) for name in ("experiment", "studies", "members", "rounds", "steps")}
    difference = {"mean": float(gap.mean()), "ci95": [float(low), float(high)]}
    write(settings | {"scores": scores, "means": means, "difference": difference}, options.out)


if __name__ == "__main__":
    main()
