"""Statistics over a few runs: robust means, intervals, performance profiles, times to a threshold, areas.

After Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS);
sections of that paper are named where they are used. Scores come as *strata*: one array for every task,
`[R]` with the scores of its runs, so that tasks may have different numbers of runs (a matrix of runs by
tasks is `list(matrix.T)`). Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.core import seeding
from coterie.core.types import Array, CoterieError

REPETITIONS = 2000  # resamples of a bootstrap
LEVEL = 0.95  # of an interval

Strata = Sequence[Array]  # one array per task, [..., R]; axes before the runs are points or resamples
Statistic = Callable[[Strata], Array]  # [..., R] of every task -> [...]


@dataclass(frozen=True)
class Estimate:
    """A statistic with its interval; None where a task has a single run."""

    value: Array  # [] or [T]
    low: Array | None
    high: Array | None

    def to_dict(self) -> dict[str, Any]:
        interval = None if self.low is None or self.high is None else [self.low.tolist(), self.high.tolist()]
        return {"value": self.value.tolist(), "interval": interval}


def bootstrap_stream() -> np.random.Generator:
    """The random stream of resamples; every estimate starts it anew, so no estimate depends on another."""
    return seeding.generator(0, "bootstrap")


def checked(scores: Strata) -> list[Array]:
    """The strata as arrays; refuses empty strata and scores that are not finite."""
    arrays = [np.asarray(task, float) for task in scores]
    if not arrays or any(task.ndim == 0 or not task.shape[-1] for task in arrays):
        raise CoterieError("statistics need at least one run of every task")
    if not all(np.isfinite(task).all() for task in arrays):
        raise CoterieError("statistics need finite scores, got NaN or infinity")
    return arrays


# Aggregates (§4.3) ------------------------------------------------------------------------------------


def interquartile_mean(scores: Strata) -> Array:
    """The mean of the middle half of all runs of all tasks: ⌊n/4⌋ are cut off at either end."""
    pooled = np.sort(np.concatenate(checked(scores), axis=-1), axis=-1)
    count = pooled.shape[-1]
    return np.asarray(pooled[..., count // 4 : count - count // 4].mean(axis=-1))


def mean(scores: Strata) -> Array:
    """The mean over tasks of each task's mean."""
    return np.asarray(np.mean([task.mean(axis=-1) for task in checked(scores)], axis=0))


def median(scores: Strata) -> Array:
    """The median over tasks of each task's mean."""
    return np.asarray(np.median([task.mean(axis=-1) for task in checked(scores)], axis=0))


def optimality_gap(scores: Strata, target: float = 1.0) -> Array:
    """The mean shortfall below a target; scores above the target count as the target."""
    return np.asarray(target - mean([np.minimum(task, target) for task in checked(scores)]))


# Intervals (§4.1) -------------------------------------------------------------------------------------


Covered = Literal["mean", "IQM"]  # statistics whose coverage was measured


class Coverage(NamedTuple):
    """The fraction of 95% bootstrap intervals from runs of one world that hold the true value."""

    normal: float  # where scores are normal
    failing: float  # where one run in five fails: scores near 0 instead of near 1


# By the number of runs, from 1,500 simulated experiments each; a test simulates them again. Without a failed run among
# those that were drawn no interval can know of failures: the mean of n runs is then missed, in 0.8ⁿ of all cases.
COVERAGE: dict[Covered, dict[int, Coverage]] = {
    "mean": {
        2: Coverage(0.49, 0.35),
        3: Coverage(0.75, 0.50),
        4: Coverage(0.81, 0.57),
        5: Coverage(0.84, 0.65),
        10: Coverage(0.90, 0.88),
        20: Coverage(0.93, 0.92),
    },
    "IQM": {
        2: Coverage(0.51, 0.50),
        3: Coverage(0.73, 0.73),
        4: Coverage(0.88, 0.87),
        5: Coverage(0.89, 0.89),
        10: Coverage(0.92, 0.93),
        20: Coverage(0.93, 0.94),
    },
}


def coverage(statistic: Covered, runs: int) -> Coverage:
    """The measured coverage for at least two runs: that of the nearest number below."""
    table = COVERAGE[statistic]
    return table[max(count for count in table if count <= runs)]


def coverage_note(statistic: Covered, runs: int) -> str:
    """A sentence on how often a 95% interval from this many runs holds the true value."""
    found = coverage(statistic, runs)
    fails = f", {found.failing:.0%} where one run in five fails" if found.failing < found.normal - 0.01 else ""
    return f"with {runs} runs a 95% interval holds the true {statistic} in about {found.normal:.0%} of cases{fails}"


def stratified_bootstrap(
    scores: Strata,
    statistic: Statistic,
    random: np.random.Generator,
    repetitions: int = REPETITIONS,
    level: float = LEVEL,
) -> Estimate:
    """A statistic with its percentile interval: runs are drawn with replacement within every task.

    Tasks of shape `[T, R]` are T points of R runs; a run drawn is drawn at all its points.
    """
    scores = checked(scores)
    value = statistic(scores)
    if any(task.shape[-1] < 2 for task in scores):
        return Estimate(value, None, None)
    draws = [random.integers(task.shape[-1], size=(repetitions, task.shape[-1])) for task in scores]
    bounds = [(1 - level) / 2, (1 + level) / 2]
    if scores[0].ndim == 1:
        low, high = np.quantile(statistic([t[d] for t, d in zip(scores, draws, strict=True)]), bounds)
        return Estimate(value, low, high)
    points = [  # one by one: all at once would take gigabytes
        np.quantile(statistic([t[point, d] for t, d in zip(scores, draws, strict=True)]), bounds)
        for point in range(len(scores[0]))
    ]
    return Estimate(value, *np.array(points).reshape(-1, 2).T)


def probability_of_improvement(
    one: Strata,
    other: Strata,
    random: np.random.Generator,
    repetitions: int = REPETITIONS,
    level: float = LEVEL,
) -> Estimate:
    """The probability that a run of `one` beats a run of `other`, averaged over tasks (§4.3).

    Mann–Whitney's U over the number of pairs; a tie counts as half a win.
    """
    one, other = checked(one), checked(other)
    if len(one) != len(other):
        raise CoterieError(f"both sides need the same tasks, got {len(one)} and {len(other)}")
    wins = [
        (x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :]) for x, y in zip(one, other, strict=True)
    ]  # [R, S] per task
    value = np.asarray(np.mean([task.mean() for task in wins]))
    if any(task.shape[-1] < 2 for task in (*one, *other)):
        return Estimate(value, None, None)
    drawn = np.zeros(repetitions)
    for task in wins:  # how often each run is drawn: [B, R] and [B, S]
        rows, columns = (random.multinomial(n, np.full(n, 1 / n), size=repetitions) for n in task.shape)
        drawn += ((rows @ task) * columns).sum(axis=1) / task.size
    low, high = np.quantile(drawn / len(wins), [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, low, high)


def performance_profile(
    scores: Strata, thresholds: Array, random: np.random.Generator, repetitions: int = REPETITIONS
) -> Estimate:
    """The share of runs that score above each threshold, `[T]`, with pointwise intervals (§4.2)."""
    above = [(task[None, :] > np.asarray(thresholds)[:, None]).astype(float) for task in checked(scores)]
    return stratified_bootstrap(above, mean, random, repetitions)


# Curves -----------------------------------------------------------------------------------------------


def align(curves: Sequence[tuple[Array, Array]], most: int | None = None) -> tuple[Array, Array]:
    """Interpolate curves (x, y) of several runs at common points: `[T]` and `[T, R]`, where all are defined.

    NaN in a curve is a gap, up to the points on its sides. A curve without points has none in common with others.
    """
    if not all(len(x) for x, _ in curves):
        return np.zeros(0), np.zeros((0, len(curves)))
    points = np.unique(np.concatenate([x for x, _ in curves]))
    points = points[(points >= max(x[0] for x, _ in curves)) & (points <= min(x[-1] for x, _ in curves))]
    if most is not None and len(points) > most:
        points = points[np.linspace(0, len(points) - 1, most).astype(int)]
    return points, np.stack([np.interp(points, x, y) for x, y in curves], axis=-1)


def area_under_curve(steps: Array, values: Array, end: float | None = None) -> float:
    """The mean height of a curve up to `end`, by trapezoids: in units of return, whatever the number of steps."""
    steps, values = _curve(steps, values)
    if end is not None and end < steps[-1]:
        kept = steps < end
        values = np.append(values[kept], np.interp(end, steps, values))
        steps = np.append(steps[kept], end)
    if len(steps) == 1 or steps[-1] <= steps[0]:
        return float(values[0])
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))


def frames_to_threshold(steps: Array, values: Array, threshold: float) -> float | None:
    """Steps at the first evaluation that reaches a threshold; None if none did."""
    steps, values = _curve(steps, values)
    reached = np.flatnonzero(values >= threshold)
    return float(steps[reached[0]]) if len(reached) else None


def _curve(steps: Array, values: Array) -> tuple[Array, Array]:
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    if steps.shape != values.shape or steps.ndim != 1 or not len(steps):
        raise CoterieError("a curve needs one value for each of its steps, and at least one")
    if not (np.isfinite(steps).all() and np.isfinite(values).all() and (np.diff(steps) > 0).all()):
        raise CoterieError("a curve needs finite values at steps that grow")
    return steps, values


# Censored times to a threshold -----------------------------------------------------


@dataclass(frozen=True)
class Reaching:
    """Steps until runs reached a threshold; runs that did not are censored, not left out."""

    runs: int
    reached: int
    median: float | None  # estimated steps by which half of the runs reach it; None: later than the runs' end
    restricted_mean: float  # mean steps until reached; times beyond the horizon count as the horizon
    horizon: float


def survival(times: Array, reached: Array) -> tuple[Array, Array]:
    """The share of runs below the threshold after each time at which a run reached it (Kaplan & Meier 1958).

    `times` `[R]` are when runs reached it, or, where `reached` is False, when their observation ended.
    """
    events = np.unique(times[reached])
    at_risk = (times[None, :] >= events[:, None]).sum(axis=1)
    happened = ((times[None, :] == events[:, None]) & reached).sum(axis=1)
    return events, np.cumprod(1 - happened / np.maximum(at_risk, 1))


def summarise_reaching(frames: Sequence[float | None], watched: Sequence[float], horizon: float) -> Reaching:
    """Summarise frames to a threshold; None where a run did not reach it before its end, `watched`."""
    if not len(frames) or len(frames) != len(watched):
        raise CoterieError("times to a threshold need at least one run, and the length of each")
    reached = np.array([frame is not None for frame in frames])
    times = np.array([until if frame is None else frame for frame, until in zip(frames, watched, strict=True)], float)
    events, share = survival(times, reached)
    half = events[share <= 0.5 + 1e-12]
    inside = events < horizon
    corners = np.concatenate([[0.0], events[inside], [horizon]])  # where the staircase steps down
    heights = np.concatenate([[1.0], share[inside]])
    area = float((np.diff(corners) * heights).sum())
    return Reaching(len(times), int(reached.sum()), float(half[0]) if len(half) else None, area, float(horizon))
