"""Fabricated runs, in the form that training writes, for the tests of comparisons."""

import json

from coterie.config import schema
from coterie.runs.run import Run
from coterie.studies.compare import compare, runs

GRID = "gridworld-cooperative"
FAST = "groups.team.learner.learning_rate=0.01"
SLOW = "groups.team.learner.learning_rate=0.001"


def fabricate(
    path,
    *words,
    curve=(0.0, 4.0, 8.0),
    score=8.0,
    last=None,
    baselines=(1.0, 10.0),
    finished=True,
    experiment=GRID,
    start=0.0,
    first=0,
):
    """A run evaluated every 100 steps and every second, from `first` and `start` on; a second group gets 1 more."""
    run = Run.create(path, schema.load(str(experiment), list(words)))
    names = list(run.config().groups)

    def result(value):
        return {"groups": {name: {"return_mean": value + number} for number, name in enumerate(names)}}

    lines = [
        {"env_steps": first + 100 * i, "wall_s": start + i, "team/entropy": 1.0}
        | {f"{name}/eval/return_mean": value + number for number, name in enumerate(names)}
        for i, value in enumerate(curve)
    ]
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {"env_steps": lines[-1]["env_steps"], "wall_s": float(len(curve) - 1)}
    summary |= {"evaluation": result(score), "last": result(score if last is None else last)}
    summary["step_0"] = result(curve[0])
    summary["baselines"] = {n: result(v) for n, v in zip(("random", "expert"), baselines, strict=False)}
    if finished:
        run.summary_file.write_text(json.dumps(summary))
    return run


def fabricate_sweep(path):
    """Two learning rates, four seeds each: one of the slow runs never reaches 5."""
    for seed, score in enumerate((6.0, 7.0, 8.0, 9.0)):
        fabricate(path / "fast" / str(seed), f"seed={seed}", FAST, curve=(0, 5, score), score=score)
    for seed, score in enumerate((2.0, 5.0, 6.0, 7.0)):
        fabricate(path / "slow" / str(seed), f"seed={seed}", SLOW, curve=(0, 1, score), score=score, last=1.0)
    return path


def compared(*words, threshold=None, by=(), **options):
    results, _ = runs.read([str(word) for word in words], **options)
    return compare.compare(runs.gather(results, by), threshold)


def labels(comparison):
    return [one.variant.label for one in comparison.standings]
