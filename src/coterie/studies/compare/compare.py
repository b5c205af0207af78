"""How contenders compare: statistics over their runs, on one scale.

In one world scores are returns as they are. In several, every world's scores become
(score − random) / (reference − random), where the reference is the world's own player if it has one, else
the best contender's mean: 0 is random play, 1 the reference (Agarwal et al. 2021, §2, where it is a human).
Showing is in `compare_show.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.config.schema import ConfigError
from coterie.core.types import Array, CoterieError
from coterie.studies import statistics
from coterie.studies.compare.runs import Curve, RunResult, Variant
from coterie.studies.statistics import Estimate, Reaching, Statistic, bootstrap_stream

POINTS = 200  # at most, of a curve
PROFILE_POINTS = 201


@dataclass(frozen=True)
class Scale:
    """How a world's returns become scores."""

    random: float = 0.0
    reference: float = 1.0
    source: str = "none"  # what the reference is: none, heuristic, best contender

    def __call__(self, value: Any) -> Any:
        return (value - self.random) / (self.reference - self.random)


@dataclass(frozen=True)
class Standing:
    """What is known about one contender."""

    contender: Variant
    seeds: int  # runs, over all worlds
    aggregates: dict[str, Estimate]  # iqm, mean; in several worlds also median, optimality_gap
    area: Estimate  # interquartile mean of the areas under the runs' curves
    profile: Estimate  # [T] share of runs above each threshold
    reaching: dict[str, Reaching]  # world -> how soon the threshold was reached; empty where none is given


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown."""

    standings: list[Standing]
    improvement: dict[tuple[int, int], Estimate]  # of contender i over contender j, i < j
    references: dict[str, float]  # scores of random play, perhaps the heuristic, step 0
    scales: dict[str, Scale]  # world -> scale
    ends: dict[str, float]  # world -> the steps up to which areas are taken
    thresholds: Array  # [T] of the profiles
    threshold: float | None

    @property
    def normalised(self) -> bool:
        return len(self.scales) > 1


def compare(contenders: Sequence[Variant], threshold: float | None = None) -> Comparison:
    """Hold contenders against each other; the same runs give the same numbers every time."""
    if threshold is not None and not np.isfinite(threshold):
        raise ConfigError(f"--threshold: expected a finite number, got {threshold}")
    worlds = list(contenders[0].runs)
    scales = {world: _scale(contenders, world, len(worlds) > 1) for world in worlds}
    everyone = {world: [run for one in contenders for run in one.runs[world]] for world in worlds}
    ends = {world: min(float(run.curve.steps[-1]) for run in runs) for world, runs in everyone.items()}
    scores = [strata(one, scales, lambda run: run.score) for one in contenders]
    pooled = np.concatenate([task for one in scores for task in one])
    margin = 0.05 * (np.ptp(pooled) or max(float(np.abs(pooled).max()), 1.0))
    thresholds = np.linspace(pooled.min() - margin, pooled.max() + margin, PROFILE_POINTS)
    horizons = {world: min(max(_watched(one.runs[world])) for one in contenders) for world in worlds}
    standings = [
        Standing(
            one,
            sum(map(len, one.runs.values())),
            {name: estimate(own, function) for name, function in _aggregates(len(worlds) > 1).items()},
            estimate(_areas(one, scales, ends), statistics.interquartile_mean),
            statistics.performance_profile(own, thresholds, bootstrap_stream()),
            {} if threshold is None else _reaching(one, scales, threshold, horizons),
        )
        for one, own in zip(contenders, scores, strict=True)
    ]
    improvement = {
        (i, j): statistics.probability_of_improvement(scores[i], scores[j], bootstrap_stream())
        for i in range(len(scores))
        for j in range(i + 1, len(scores))
    }
    return Comparison(standings, improvement, _references(everyone, scales), scales, ends, thresholds, threshold)


def estimate(scores: Sequence[Array], statistic: Statistic) -> Estimate:
    """A statistic with its bootstrap interval."""
    return statistics.stratified_bootstrap(scores, statistic, bootstrap_stream())


def strata(contender: Variant, scales: dict[str, Scale], read: Callable[[RunResult], float]) -> list[Array]:
    """One number of every run, world by world, on the common scale."""
    return [scales[world](np.array([read(run) for run in runs])) for world, runs in contender.runs.items()]


def _areas(contender: Variant, scales: dict[str, Scale], ends: dict[str, float]) -> list[Array]:
    return [scales[world](np.array([area(run, ends[world]) for run in runs])) for world, runs in contender.runs.items()]


def area(run: RunResult, end: float) -> float:
    """The area under a run's curve, in its own returns."""
    return statistics.area_under_curve(run.curve.steps, run.curve.value, end)


def frames(run: RunResult, scale: Scale, threshold: float) -> float | None:
    """Steps until a run's evaluations reach the threshold."""
    return statistics.frames_to_threshold(run.curve.steps, scale(run.curve.value), threshold)


def _aggregates(several: bool) -> dict[str, Statistic]:
    both: dict[str, Statistic] = {"iqm": statistics.interquartile_mean, "mean": statistics.mean}
    more: dict[str, Statistic] = {"median": statistics.median, "optimality_gap": statistics.optimality_gap}
    return both | more if several else both


def _scale(contenders: Sequence[Variant], world: str, several: bool) -> Scale:
    if not several:
        return Scale()
    runs = [run for one in contenders for run in one.runs[world]]
    random = float(np.mean([run.others["random"] for run in runs]))
    if all("expert" in run.others for run in runs):
        scale = Scale(random, float(np.mean([run.others["expert"] for run in runs])), "expert")
    else:
        best = max(float(np.mean([run.score for run in one.runs[world]])) for one in contenders)
        scale = Scale(random, best, "best contender")
    if scale.reference <= random:
        raise CoterieError(
            f"world '{world}': the reference ({scale.source}, {scale.reference:.2f}) is no better than random play "
            f"({random:.2f}), so its scores cannot be put on one scale with others; compare its runs alone"
        )
    return scale


def _references(everyone: dict[str, list[RunResult]], scales: dict[str, Scale]) -> dict[str, float]:
    """Scores of those who need no training, as far as every run knows them."""
    found = {}
    for name in ("random", "expert", "step 0"):
        if all(name in run.others for runs in everyone.values() for run in runs):
            means = [scales[w](np.mean([run.others[name] for run in runs])) for w, runs in everyone.items()]
            found[name] = float(np.mean(means))
    return found


def _reaching(
    contender: Variant, scales: dict[str, Scale], threshold: float, horizons: dict[str, float]
) -> dict[str, Reaching]:
    """World by world: steps of different worlds are no samples of one time."""
    found = {}
    for world, runs in contender.runs.items():
        took = [frames(run, scales[world], threshold) for run in runs]
        found[world] = statistics.summarise_reaching(took, _watched(runs), horizons[world])
    return found


def _watched(runs: Sequence[RunResult]) -> list[float]:
    return [float(run.curve.steps[-1]) for run in runs]


def curves(contender: Variant, scales: dict[str, Scale], axis: str) -> tuple[Array, Estimate]:
    """Interquartile means of the runs' evaluations against `steps` or `wall`, as far as all runs go."""
    runs = [(scales[world], run.curve) for world, runs in contender.runs.items() for run in runs]

    def along(curve: Curve) -> Array:
        return curve.steps if axis == "steps" else curve.wall

    points, values = statistics.align([(along(curve), scale(curve.value)) for scale, curve in runs], POINTS)
    sizes = np.cumsum([len(members) for members in contender.runs.values()])[:-1]
    return points, estimate(np.split(values, sizes, axis=1), statistics.interquartile_mean)


# As JSON ----------------------------------------------------------------------------------------------


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as JSON."""
    several = comparison.normalised
    labels = [one.contender.label for one in comparison.standings]
    return {
        "worlds": {
            world: {"area_up_to": comparison.ends[world], "scale": dataclasses.asdict(scale) if several else None}
            for world, scale in comparison.scales.items()
        },
        "interval": {
            "level": statistics.LEVEL,
            "method": "stratified bootstrap, percentiles",
            "repetitions": statistics.REPETITIONS,
        },
        "threshold": comparison.threshold,
        "contenders": [_standing(comparison, one) for one in comparison.standings],
        "probability_of_improvement": [
            {"of": labels[i], "over": labels[j]} | found.plain() for (i, j), found in comparison.improvement.items()
        ],
        "references": comparison.references,
        "profile_thresholds": comparison.thresholds.tolist(),
    }


def _standing(comparison: Comparison, standing: Standing) -> dict[str, Any]:
    x = {axis: curves(standing.contender, comparison.scales, axis) for axis in ("steps", "wall")}
    return {
        "label": standing.contender.label,
        "seeds": standing.seeds,
        **{name: found.plain() for name, found in standing.aggregates.items()},
        "area_under_curve": standing.area.plain(),
        "performance_profile": standing.profile.plain(),
        "frames_to_threshold": {w: dataclasses.asdict(r) for w, r in standing.reaching.items()} or None,
        "curves": {axis: {"at": points.tolist()} | found.plain() for axis, (points, found) in x.items()},
        "runs": _rows(comparison, standing),
    }


def as_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for every run, in its own returns."""
    return [row for standing in comparison.standings for row in _rows(comparison, standing)]


def _rows(comparison: Comparison, standing: Standing) -> list[dict[str, Any]]:
    rows = []
    for world, runs in standing.contender.runs.items():
        scale, threshold = comparison.scales[world], comparison.threshold
        for run in runs:
            took = None if threshold is None else frames(run, scale, threshold)
            rows.append(
                {
                    "contender": standing.contender.label,
                    "world": world,
                    "run": str(run.path),
                    "seed": run.seed,
                    "score": run.score,
                    "normalised": float(scale(run.score)) if comparison.normalised else None,
                    "last": run.last,
                    "auc": area(run, comparison.ends[world]),
                    "frames_to_threshold": took,
                    "censored": None if threshold is None else took is None,
                    "wall_s": run.wall_s,
                    "env_steps": run.env_steps,
                }
            )
    return rows
