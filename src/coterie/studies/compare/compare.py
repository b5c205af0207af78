"""Compares variants: statistics over their runs, on one scale.

In one world scores are returns. With several worlds, every world's scores become
(score − random) / (reference − random), where the reference is the world's scripted expert if it has one, else the mean
of the best variant: 0 is random play, 1 the reference (Agarwal et al. 2021, §2, where it is a human). Tables, JSON and
figures are in `show.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.config.schema import ConfigError
from coterie.core.types import Array, CoterieError
from coterie.studies import statistics
from coterie.studies.compare.runs import Curve, RunResult, Variant
from coterie.studies.statistics import Estimate, Reaching, Statistic, bootstrap_stream

MAX_POINTS = 200  # of a curve
PROFILE_POINTS = 201


@dataclass(frozen=True)
class Scale:
    """Maps a world's returns to scores."""

    random: float = 0.0
    reference: float = 1.0
    source: str = "none"  # of the reference: none, expert, best variant

    def __call__(self, value: Any) -> Any:
        return (value - self.random) / (self.reference - self.random)


@dataclass(frozen=True)
class Standing:
    """The statistics of one variant."""

    variant: Variant
    seeds: int  # runs, over all worlds
    aggregates: dict[str, Estimate]  # iqm, mean; in several worlds also median, optimality_gap
    area: Estimate  # interquartile mean of the areas under the runs' curves
    profile: Estimate  # [T] share of runs above each threshold
    reaching: dict[str, Reaching]  # world -> steps to the threshold; empty without a threshold


@dataclass(frozen=True)
class Comparison:
    """The statistics of all variants."""

    standings: list[Standing]
    improvement: dict[tuple[int, int], Estimate]  # of variant i over variant j, i < j
    references: dict[str, float]  # scores of random play, step 0 and, where known, the expert
    scales: dict[str, Scale]  # world -> scale
    ends: dict[str, float]  # world -> steps up to which areas are computed
    thresholds: Array  # [T] of the profiles
    threshold: float | None

    @property
    def normalised(self) -> bool:
        return len(self.scales) > 1


def compare(variants: Sequence[Variant], threshold: float | None = None) -> Comparison:
    """Compare variants; the same runs always give the same numbers."""
    if threshold is not None and not np.isfinite(threshold):
        raise ConfigError(f"--threshold: expected a finite number, got {threshold}")
    worlds = list(variants[0].runs)
    scales = {world: _scale(variants, world, len(worlds) > 1) for world in worlds}
    all_runs = {world: [run for one in variants for run in one.runs[world]] for world in worlds}
    ends = {world: min(float(run.curve.steps[-1]) for run in runs) for world, runs in all_runs.items()}
    scores = [strata(one, scales, lambda run: run.score) for one in variants]
    pooled = np.concatenate([task for one in scores for task in one])
    margin = 0.05 * (np.ptp(pooled) or max(float(np.abs(pooled).max()), 1.0))
    thresholds = np.linspace(pooled.min() - margin, pooled.max() + margin, PROFILE_POINTS)
    horizons = {world: min(max(_watched(one.runs[world])) for one in variants) for world in worlds}
    standings = [
        Standing(
            one,
            sum(map(len, one.runs.values())),
            {name: estimate(own, function) for name, function in _aggregates(len(worlds) > 1).items()},
            estimate(_areas(one, scales, ends), statistics.interquartile_mean),
            statistics.performance_profile(own, thresholds, bootstrap_stream()),
            {} if threshold is None else _reaching(one, scales, threshold, horizons),
        )
        for one, own in zip(variants, scores, strict=True)
    ]
    improvement = {
        (i, j): statistics.probability_of_improvement(scores[i], scores[j], bootstrap_stream())
        for i in range(len(scores))
        for j in range(i + 1, len(scores))
    }
    return Comparison(standings, improvement, _references(all_runs, scales), scales, ends, thresholds, threshold)


def estimate(scores: Sequence[Array], statistic: Statistic) -> Estimate:
    """A statistic with its bootstrap interval."""
    return statistics.stratified_bootstrap(scores, statistic, bootstrap_stream())


def strata(variant: Variant, scales: dict[str, Scale], read: Callable[[RunResult], float]) -> list[Array]:
    """One number of every run, by world, on the common scale."""
    return [scales[world](np.array([read(run) for run in runs])) for world, runs in variant.runs.items()]


def _areas(variant: Variant, scales: dict[str, Scale], ends: dict[str, float]) -> list[Array]:
    return [scales[world](np.array([area(run, ends[world]) for run in runs])) for world, runs in variant.runs.items()]


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


def _scale(variants: Sequence[Variant], world: str, several: bool) -> Scale:
    if not several:
        return Scale()
    runs = [run for one in variants for run in one.runs[world]]
    random = float(np.mean([run.baselines["random"] for run in runs]))
    if all("expert" in run.baselines for run in runs):
        scale = Scale(random, float(np.mean([run.baselines["expert"] for run in runs])), "expert")
    else:
        best = max(float(np.mean([run.score for run in one.runs[world]])) for one in variants)
        scale = Scale(random, best, "best variant")
    if scale.reference <= random:
        raise CoterieError(
            f"world '{world}': the reference ({scale.source}, {scale.reference:.2f}) is not better than random play "
            f"({random:.2f}), so its scores cannot be normalised; compare its runs alone"
        )
    return scale


def _references(all_runs: dict[str, list[RunResult]], scales: dict[str, Scale]) -> dict[str, float]:
    """Scores of the baselines that every run has."""
    found = {}
    for name in ("random", "expert", "step 0"):
        if all(name in run.baselines for runs in all_runs.values() for run in runs):
            means = [scales[w](np.mean([run.baselines[name] for run in runs])) for w, runs in all_runs.items()]
            found[name] = float(np.mean(means))
    return found


def _reaching(
    variant: Variant, scales: dict[str, Scale], threshold: float, horizons: dict[str, float]
) -> dict[str, Reaching]:
    """Steps to the threshold by world, since steps of different worlds are not comparable."""
    found = {}
    for world, runs in variant.runs.items():
        took = [frames(run, scales[world], threshold) for run in runs]
        found[world] = statistics.summarise_reaching(took, _watched(runs), horizons[world])
    return found


def _watched(runs: Sequence[RunResult]) -> list[float]:
    return [float(run.curve.steps[-1]) for run in runs]


def curves(variant: Variant, scales: dict[str, Scale], axis: str) -> tuple[Array, Estimate]:
    """Interquartile means of the runs' evaluations against `steps` or `wall`, where all runs have values."""
    runs = [(scales[world], run.curve) for world, runs in variant.runs.items() for run in runs]

    def along(curve: Curve, scale: Scale) -> tuple[Array, Array]:
        at = curve.steps if axis == "steps" else curve.wall
        return at[np.isfinite(at)], scale(curve.value)[np.isfinite(at)]

    points, values = statistics.align([along(curve, scale) for scale, curve in runs], MAX_POINTS)
    sizes = np.cumsum([len(members) for members in variant.runs.values()])[:-1]
    return points, estimate(np.split(values, sizes, axis=1), statistics.interquartile_mean)
