"""Students of a teacher beside PPO alone: environment steps to 90% success, and what is left when the teacher is off.

    python benchmarks/teacher.py --seeds 5 --jobs 2
    python benchmarks/teacher.py --only doorkey5 spread

Trains what is not there yet. Students are evaluated without their teacher (greedy, 100 validation episodes); the scores
at the end are those of 100 held-out episodes that are the same for all seeds. PPO alone ends once two evaluations in a
row reach the threshold; a run that never does counts as its whole length. Settings were chosen on seeds 100 to 102,
`trust` and the entropy bonus beside it on seeds 100 to 107.
Writes a JSON file and a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the networks are small, and several runs share the machine

from interleave import commit
from kept_runs import is_kept

from coterie.config import schema
from coterie.lm import plans
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.training import loop
from coterie.training.loop import AfterValidation

QUIET = ["train.video=false", "train.tensorboard=false"]


@dataclass(frozen=True)
class Arm:
    """One way to learn a task."""

    experiment: str
    words: tuple[str, ...] = ()  # overrides
    alone: bool = False  # without a teacher: ends early (with --until-reached all arms do)


@dataclass(frozen=True)
class Task:
    """Arms to compare, the one without a teacher first."""

    title: str
    metric: str  # of metrics.jsonl: what the curves show
    threshold: float | None  # of the metric; None: what the arm without a teacher has at its end, mean of the seeds
    arms: dict[str, Arm]
    tests: dict[str, Callable[[dict[str, Any]], bool]] = field(default_factory=dict)  # by name, on the arms' results


def taught(experiment: str, group: str, **settings: Any) -> Arm:
    """The experiment with other settings of its teacher."""
    return Arm(experiment, tuple(f"groups.{group}.advisor.{name}={value}" for name, value in settings.items()))


def unchecked(**settings: Any) -> Arm:
    """A teacher that may be wrong, of DoorKey 5×5: trust, and the entropy bonus of PPO alone."""
    arm = taught("doorkey5-teacher", "agent", trust="true", **settings)
    return replace(arm, words=(*arm.words, "groups.agent.learner.entropy_coefficient=0.04"))


def ratio(found: dict[str, Any], arm: str) -> float:
    """Median steps to the threshold, in parts of those of PPO alone."""
    return found[arm]["median_steps"] / found["PPO alone"]["median_steps"]


def greedy(found: dict[str, Any], arm: str = "teacher") -> float:
    """The students' mean success at the end, greedy, teacher off."""
    return statistics.mean(row["last"]["greedy"] for row in found[arm]["seeds"])


def solved(found: dict[str, Any], arm: str, steps: float) -> bool:
    """Whether every seed of an arm reaches the threshold within so many steps."""
    return all((row["steps_to_threshold"] or float("inf")) <= steps for row in found[arm]["seeds"])


def after(found: dict[str, Any], arm: str, off: int) -> float:
    """Median steps to the threshold after the teacher's end, in parts of those of PPO alone."""
    return (found[arm]["median_steps"] - off) / found["PPO alone"]["median_steps"]


SUCCESS = "eval/success_rate"
TASKS = {
    "doorkey5": Task(
        "DoorKey 5×5",
        SUCCESS,
        0.9,
        {
            "PPO alone": Arm("doorkey5", alone=True),
            "teacher": Arm("doorkey5-teacher"),
            "oracle": taught("doorkey5-teacher", "agent", plans="oracle"),
            "noisy texts": taught("doorkey5-teacher", "agent", noise=0.3),
            "noisy decisions": taught("doorkey5-teacher", "agent", noise=0.3, noise_by="decision"),
            "adversary": taught("doorkey5-teacher", "agent", adversarial="true"),
            "adversary, smoother": taught("doorkey5-teacher", "agent", adversarial="true", smoothing=0.2),
            "teacher, trust": taught("doorkey5-teacher", "agent", trust="true"),
            "noisy texts, trust": taught("doorkey5-teacher", "agent", trust="true", noise=0.3),
            "noisy decisions, trust": taught("doorkey5-teacher", "agent", trust="true", noise=0.3, noise_by="decision"),
            "adversary, trust": taught("doorkey5-teacher", "agent", trust="true", adversarial="true"),
            "teacher, trust, entropy": unchecked(),
            "noisy texts, trust, entropy": unchecked(noise=0.3),
            "adversary, trust, entropy": unchecked(adversarial="true"),
        },
        {
            "teacher <= 0.4 of PPO alone": lambda found: ratio(found, "teacher") <= 0.4,
            "teacher asks about <= 10 texts": lambda found: found["teacher"]["distinct"] <= 10,
            "noisy texts <= 0.6 of PPO alone": lambda found: ratio(found, "noisy texts") <= 0.6,
            "noisy decisions <= 0.6 of PPO alone": lambda found: ratio(found, "noisy decisions") <= 0.6,
            "adversary <= 2 times PPO alone, once off, in the median": lambda found: (
                after(found, "adversary", 10_000) <= 2
            ),
            "the same on every seed": lambda found: solved(
                found, "adversary", 10_000 + 2 * found["PPO alone"]["median_steps"]
            ),
            "the same with more smoothing": lambda found: solved(
                found, "adversary, smoother", 10_000 + 2 * found["PPO alone"]["median_steps"]
            ),
            "the same with trust": lambda found: solved(
                found, "adversary, trust", 10_000 + 2 * found["PPO alone"]["median_steps"]
            ),
            "the same with trust and entropy": lambda found: solved(
                found, "adversary, trust, entropy", 10_000 + 2 * found["PPO alone"]["median_steps"]
            ),
            "teacher with trust <= 0.4 of PPO alone": lambda found: ratio(found, "teacher, trust") <= 0.4,
            "teacher with trust and entropy <= 0.4 of PPO alone": lambda found: (
                ratio(found, "teacher, trust, entropy") <= 0.4
            ),
            "noisy texts with trust and entropy <= 0.6 of PPO alone": lambda found: (
                ratio(found, "noisy texts, trust, entropy") <= 0.6
            ),
            "noisy texts with trust <= 0.6 of PPO alone": lambda found: ratio(found, "noisy texts, trust") <= 0.6,
            "noisy decisions with trust <= 0.6 of PPO alone": lambda found: (
                ratio(found, "noisy decisions, trust") <= 0.6
            ),
        },
    ),
    "doorkey8": Task(
        "DoorKey 8×8",
        SUCCESS,
        0.9,
        {
            "PPO alone": Arm("doorkey8", ("train.total_steps=1000000",), alone=True),
            "teacher": Arm("doorkey8-teacher"),
            "oracle": taught("doorkey8-teacher", "agent", plans="oracle"),
            "teacher, trust": taught("doorkey8-teacher", "agent", trust="true"),
        },
        {
            "teacher <= 60,000 steps": lambda found: found["teacher"]["median_steps"] <= 60_000,
            "teacher <= 0.2 of PPO alone": lambda found: ratio(found, "teacher") <= 0.2,
            "teacher with trust <= 0.2 of PPO alone": lambda found: ratio(found, "teacher, trust") <= 0.2,
        },
    ),
    "simple": Task(
        "SimpleDoorKey",
        SUCCESS,
        0.9,
        {"PPO alone": Arm("simple-doorkey", alone=True), "teacher": Arm("simple-doorkey-teacher")},
    ),
    "lava": Task(
        "LavaDoorKey",
        SUCCESS,
        0.9,
        {"PPO alone": Arm("lava-doorkey", alone=True), "teacher": Arm("lava-doorkey-teacher")},
        {"student >= 80%": lambda found: greedy(found) >= 0.8},
    ),
    "colored": Task(
        "ColoredDoorKey",
        SUCCESS,
        0.9,
        {"PPO alone": Arm("colored-doorkey", alone=True), "teacher": Arm("colored-doorkey-teacher")},
        {"student >= 90%": lambda found: greedy(found) >= 0.9},
    ),
    "two-door": Task(
        "TwoDoor",
        SUCCESS,
        0.9,
        {"PPO alone": Arm("two-door", alone=True), "teacher": Arm("two-door-teacher")},
        {"student >= 50%": lambda found: greedy(found) >= 0.5},
    ),
    "spread": Task(
        "simple_spread, three agents",
        "team/eval/return_mean",
        None,
        {
            "PPO alone": Arm("spread-ippo", ("train.evaluate_every=5",)),  # cut at half its schedule: the stronger one
            "PPO alone, annealed": Arm("spread-ippo", ("train.evaluate_every=5", "train.total_steps=1000000")),
            "teacher": Arm("spread-teacher"),
            "oracle": taught("spread-teacher", "team", plans="oracle"),
            "individual students": Arm(  # each learns from a third of the decisions: the pull is stronger and longer
                "spread-teacher",
                (
                    "groups.team.parameters=individual",
                    "groups.team.advisor.use.strength=3",
                    "groups.team.advisor.use.frames=600000",
                ),
            ),
        },
        {"teacher <= 0.5 of 1,000,000": lambda found: found["teacher"]["median_steps"] <= 500_000},
    ),
    "gridworld": Task(
        "grid world, two agents",
        SUCCESS,
        0.9,
        {
            "PPO alone": Arm("gridworld-teacher", ("groups.team.advisor=none",)),
            "teacher": Arm("gridworld-teacher"),
            "oracle": taught("gridworld-teacher", "team", plans="oracle"),
            "individual students": Arm("gridworld-teacher", ("groups.team.parameters=individual",)),
        },
    ),
}
LIMITS = {"spread": 1_000_000}  # environment steps after which all runs of a task end


def train(name: str, arm: Arm, seed: int, limit: int | None, threshold: float | None, path: Path) -> Path:
    """Train a run, unless it is there."""
    settings = schema.load(arm.experiment, [*arm.words, f"seed={seed}", *QUIET])
    if is_kept(path, settings):
        return path
    run = Run.create(path, settings)
    reached: list[bool] = []

    def watch(steps: int, score: float) -> AfterValidation:
        if limit is not None and steps >= limit:
            return AfterValidation.FINISH
        if not arm.alone or threshold is None:
            return AfterValidation.CONTINUE
        latest = [record[SUCCESS] for record in Run.open(path).metrics() if SUCCESS in record]
        reached.append(bool(latest) and latest[-1] >= threshold)
        return AfterValidation.FINISH if len(reached) > 1 and all(reached[-2:]) else AfterValidation.CONTINUE

    loop.train(settings, run, quiet=True, watch=watch)
    print(f"{name}, seed {seed}: {run.path}", file=sys.stderr, flush=True)
    return path


def is_finished(path: Path) -> bool:
    """Whether there is a whole run."""
    return (path / "summary.json").exists()


def curve(run: Run, metric: str) -> list[tuple[int, float]]:
    """Environment steps and scores of the policy alone."""
    return [(record["env_steps"], record[metric]) for record in run.metrics() if metric in record]


def score(result: dict[str, Any], metric: str) -> float:
    """One number of an evaluation: success, or the mean return of the only group."""
    if metric == SUCCESS:
        return round(float(result["success_rate"]), 4)
    (group,) = result["groups"].values()
    return round(float(group["return_mean"]), 4)


def measure(path: Path, metric: str, threshold: float) -> dict[str, Any]:
    """The result of one seed."""
    run = Run.open(path)
    summary, points = run.summary() or {}, curve(run, metric)
    reached = next((steps for steps, value in points if value >= threshold), None)
    last = run.metrics()[-1]
    rest = [value for steps, value in points if reached is not None and steps >= reached]
    found = {
        "seed": summary["seed"],
        "steps_to_threshold": reached,
        "env_steps": summary["env_steps"],
        "lowest_afterwards": min(rest, default=None),
        "best": {"greedy": score(summary["evaluation"], metric)},
        "last": {"greedy": score(summary["last"], metric)},
        "step_0": {"greedy": score(summary["step_0"], metric)},
        "baselines": {name: score(result, metric) for name, result in summary["baselines"].items()},
        "wall_s": summary["wall_s"],
        "steps_per_s": summary["steps_per_s"],
    }
    if "drawn" in summary:
        found["best"]["drawn"] = score(summary["drawn"], metric)
        found["step_0"]["drawn"] = score(summary["step_0"]["drawn"], metric)
    asked = {name.rpartition("advice/")[2]: value for name, value in last.items() if "/advice/" in name}
    return found | {f"advice/{name}": round(value, 4) for name, value in asked.items()}


def summarize(task: Task, runs: dict[str, list[Path]], made: dict[str, str], before: dict[str, Any]) -> dict[str, Any]:
    """The results of all arms, and which tests pass.

    `made` says by which command and commit these runs were trained; `before` has earlier results of the task, if any.
    """
    threshold, kept = task.threshold, before.get("arms", {})
    if threshold is None and "PPO alone" not in runs:
        if "threshold" not in before:
            raise SystemExit(f"{task.title}: the threshold is what PPO alone reaches; add --arms 'PPO alone'")
        threshold = before["threshold"]
    elif threshold is None:
        finals = [curve(Run.open(path), task.metric)[-1][1] for path in runs["PPO alone"]]
        threshold = statistics.mean(finals)
    found: dict[str, Any] = {}
    for name in task.arms:
        if name not in runs:
            found |= {name: kept[name]} if name in kept else {}
            continue
        paths = runs[name]
        rows = [measure(path, task.metric, threshold) for path in paths]
        steps = [row["steps_to_threshold"] or row["env_steps"] for row in rows]
        found[name] = {
            "experiment": " ".join(["coterie train", task.arms[name].experiment, *task.arms[name].words]),
            "median_steps": statistics.median(steps),
            "reached": f"{sum(row['steps_to_threshold'] is not None for row in rows)}/{len(rows)}",
            "never_reached": sum(row["steps_to_threshold"] is None for row in rows),
            "distinct": max((row.get("advice/distinct", 0) for row in rows), default=0),
            "seeds": rows,
        }
        found[name] |= made
    if "PPO alone" in found:
        for name, each in found.items():
            each["ratio"] = round(ratio(found, name), 4)
    tests = {}
    for name, test in task.tests.items():
        try:
            tests[name] = test(found)
        except KeyError:
            tests[name] = None  # an arm was left out
    return {"title": task.title, "threshold": round(threshold, 4), "tests": tests, "arms": found}


def draw(found: dict[str, Any]) -> bytes:
    """One panel per task: the steps that every seed of each arm took to the threshold."""
    from matplotlib.figure import Figure

    results = found["tasks"]
    rows = -(-len(results) // 2)
    arms = list(dict.fromkeys(arm for result in results.values() for arm in result["arms"]))
    kinds = list(dict.fromkeys(arm.partition(", ")[0] for arm in arms))  # variants of an arm share its colour
    colours = {arm: figures.colour(kinds.index(arm.partition(", ")[0])) for arm in arms}
    figure = Figure(figsize=(12, 2.9 * rows), layout="constrained")
    for place, result in enumerate(results.values(), 1):
        axes = figure.add_subplot(rows, 2 if len(results) > 1 else 1, place)
        runs = {
            arm: [
                (row["steps_to_threshold"] or row["env_steps"], row["steps_to_threshold"] is not None)
                for row in one["seeds"]
            ]
            for arm, one in result["arms"].items()
        }
        figures.draw_reaching(axes, runs, colours)
        title = f"{result['title']}: steps to {result['threshold']:.3g}".replace("-", "−")
        figures.label_panel(axes, title, figures.STEPS, "")
    words = "Every dot is a seed, played without its teacher; open: not reached by its last step. Line: the median."
    figure.supxlabel(words, fontsize=8, color=figures.TEXT)
    return figures.as_png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--update", action="store_true", help="keep the results of other arms that the file has")
    parser.add_argument("--only", nargs="*", choices=list(TASKS), default=list(TASKS), help="tasks (default: all)")
    parser.add_argument("--arms", nargs="*", help="arms (default: all)")
    parser.add_argument("--summarize", action="store_true", help="train nothing; leave out arms without all runs")
    parser.add_argument("--until-reached", action="store_true", help="end all runs as those of PPO alone")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/teacher"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/teacher.json"))
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.until_reached:
        for task in given.only:
            arms = {name: replace(arm, alone=True) for name, arm in TASKS[task].arms.items()}
            TASKS[task] = replace(TASKS[task], arms=arms)
    runs: dict[str, dict[str, list[Path]]] = {
        task: {
            arm: [given.runs / task / f"{arm.replace(' ', '-')}-seed={s}" for s in seeds]
            for arm in made.arms
            if given.arms is None or arm in given.arms
        }
        for task, made in TASKS.items()
        if task in given.only
    }
    if given.summarize:
        done = {path for arms in runs.values() for paths in arms.values() for path in paths if is_finished(path)}
        runs = {
            task: {arm: paths for arm, paths in arms.items() if done.issuperset(paths)} for task, arms in runs.items()
        }
        runs = {task: arms for task, arms in runs.items() if arms}
    work = [
        partial(train, f"{task}, {arm}", TASKS[task].arms[arm], seed, LIMITS.get(task), TASKS[task].threshold, path)
        for task, arms in runs.items()
        for arm, paths in arms.items()
        for seed, path in zip(seeds, paths, strict=True)
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        for future in [pool.submit(each) for each in work]:
            future.result()
    before = json.loads(given.out.read_text())["tasks"] if given.update and given.out.exists() else {}
    made = {"command": " ".join(["python", *sys.argv]), "commit": commit()}
    results = dict(before)
    for task, arms in runs.items():
        results[task] = summarize(TASKS[task], arms, made, before.get(task, {}))
    tables = {path.stem: len(json.loads(path.read_text())["plans"]) for path in sorted(plans.FOLDER.glob("*.json"))}
    written = {
        **made,
        "model_answers_in_tables": tables,
        "tasks": results,
    }
    given.out.write_text(json.dumps(written, indent=1) + "\n")
    given.out.with_suffix(".png").write_bytes(draw(written))
    for task in runs:
        result = results[task]
        print(f"{task}: {result['tests']}")
        for arm, each in result["arms"].items():
            reached = [row["steps_to_threshold"] for row in each["seeds"]]
            count = f"{sum(one is not None for one in reached)}/{len(reached)}"
            median = f"median {each['median_steps']:>9,.0f}"
            print(f"  {arm:20} {count} reach it, {median}, ratio {each.get('ratio')}  {reached}")


if __name__ == "__main__":
    main()
