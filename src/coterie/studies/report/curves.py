"""The charts of a report: returns, success and the learners' metrics of runs that differ only in seed.

A group has one colour in every chart. What evaluations measured (greedy play) is a solid line, what training recorded
is faint. A learner class declares the panels of its metrics (`core.group.Panel`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.config import registry
from coterie.config.schema import shown_class
from coterie.core.group import PANELS
from coterie.core.types import Array
from coterie.runs.records import Records
from coterie.runs.run import Run, entry, number
from coterie.studies import figures, statistics
from coterie.studies.figures import Chart, Reference, Series
from coterie.studies.statistics import Estimate, bootstrap_stream

MAX_POINTS = 200  # of a line with a band
AXES = {"env_steps": figures.STEPS, "wall_s": figures.TRAINING}  # key of a record -> label of the x axis
WIDE = 1.5  # times the usual distance of two points, beyond which a damaged line between them held a value


@dataclass(frozen=True)
class Line:
    """One metric in a plot."""

    metric: str
    label: str
    colour: str
    faint: bool = False
    dash: int = 0


@dataclass(frozen=True)
class Plot:
    """Lines that are drawn together."""

    title: str
    unit: str  # label of the y axis
    lines: list[Line] = field(default_factory=list)
    x: str = "env_steps"
    share: bool = False


def charts(runs: Sequence[Run]) -> list[Chart]:
    """The charts of these runs; those of which nothing was recorded are left out."""
    records = [_from_step_0(run.records()) for run in runs]
    recorded = {name for one in records for record in one.rows for name in record}
    plots = [plot for plot in _plots(runs[0], records) if any(line.metric in recorded for line in plot.lines)]
    return [_chart(plot, runs, records) for plot in plots]


def _from_step_0(records: Records) -> Records:
    """The records with seconds since step 0 was evaluated, which may take longer than a short training."""
    rows = records.rows
    known = bool(rows) and rows[0]["env_steps"] == 0 and math.isfinite(rows[0]["wall_s"])
    before = rows[0]["wall_s"] if known else 0.0
    return records._replace(rows=[record | {"wall_s": record["wall_s"] - before} for record in rows])


def _chart(plot: Plot, runs: Sequence[Run], records: Sequence[Records]) -> Chart:
    found = [series for line in plot.lines if (series := _series(records, plot.x, line)) is not None]
    references = _references(runs) if plot.title.startswith("return") else ()
    missing = f"no {'steps' if plot.x == 'env_steps' else 'seconds'} that all runs share"
    note = "" if found else missing
    return Chart(plot.title, AXES[plot.x], plot.unit, tuple(found), references, plot.share, note)


def _plots(run: Run, records: Sequence[Records]) -> list[Plot]:
    """Returns and success of every table, then the panels of its learners."""
    groups = list(run.config().groups)
    colours = {group: figures.colour(i) for i, group in enumerate(groups)}
    names = {n for one in records for n in one.rows[-1] if "/return_" in n and n.split("_")[-1].isdigit()}
    average = sorted(names, key=lambda name: groups.index(name.split("/")[0]))
    returns = [Line(f"{g}/eval/return_mean", f"{g}, greedy", colours[g]) for g in groups]
    for name in average:
        group, episodes = name.split("/")[0], name.split("_")[-1]
        returns.append(Line(name, f"{group}, training ({episodes} episodes)", colours[group], faint=True))
    success = [
        Line("eval/success_rate", "greedy", figures.NEUTRAL),
        Line("success_rate", "training", figures.NEUTRAL, faint=True),
    ]
    return [
        Plot("return", "mean return", returns),
        Plot("return against time", "mean return", returns, "wall_s"),
        Plot("success", "share of episodes", success, share=True),
        *_learner_plots(run, colours),
    ]


def _learner_plots(run: Run, colours: dict[str, str]) -> list[Plot]:
    """The panels that the groups' learners declare; those of one title are one plot."""
    plots: dict[str, Plot] = {}
    for name, group in run.config().groups.items():
        if group.learner is None:
            continue
        learner = shown_class(registry.LEARNERS, group.learner)  # None has the default panels
        for panel in PANELS if learner is None else learner.panels:
            plot = plots.setdefault(panel.title, Plot(panel.title, panel.unit))
            for m, metric in enumerate(panel.metrics):
                label = name if len(panel.metrics) == 1 else f"{name}, {metric.replace('_', ' ')}"
                plot.lines.append(Line(f"{name}/{metric}", label, colours[name], dash=m))
    return list(plots.values())


def _series(records: Sequence[Records], x: str, line: Line) -> Series | None:
    """One metric: its mean over the runs, as far as all of them go, and the interval of that mean."""
    curves = [curve for one in records if len((curve := _points(one, x, line.metric))[0])]
    if not curves:
        return None
    points, values = statistics.align(curves, MAX_POINTS if len(curves) > 1 else None)
    known = np.isfinite(values).all(axis=1)
    if not known.any():
        return None
    estimate = statistics.stratified_bootstrap([values[known]], statistics.mean, bootstrap_stream())
    return Series(line.label, line.colour, points, _with_gaps(estimate, known), line.faint, line.dash)


def _points(records: Records, x: str, metric: str) -> tuple[Array, Array]:
    """One metric of one run, with NaN at a place between the points where values are missing.

    A value that is no finite number is missing. A line that cannot be read may have held a value: it did where the
    points on its sides are further apart than usual.
    """
    points, lost = list[tuple[float, float]](), list[tuple[int, bool]]()  # place, and whether a value was there
    for place, row in enumerate(records.rows):
        if place in records.gaps:
            lost.append((len(points), False))
        if metric in row:
            if math.isfinite(row[x]) and math.isfinite(row[metric]):
                points.append((row[x], row[metric]))
            else:
                lost.append((len(points), True))
    at, values = np.array(points, float).reshape(-1, 2).T
    usual = float(np.median(np.diff(at))) if len(at) > 1 else 0.0
    gaps = sorted({i for i, sure in lost if 0 < i < len(at) and (sure or at[i] - at[i - 1] > WIDE * usual)})
    return np.insert(at, gaps, [(at[i] + at[i - 1]) / 2 for i in gaps]), np.insert(values, gaps, np.nan)


def _with_gaps(estimate: Estimate, known: Array) -> Estimate:
    """An estimate at the points that are known, NaN at the others."""

    def spread(values: Any) -> Any:
        if values is None:
            return None
        whole = np.full(len(known), np.nan)
        whole[known] = values
        return whole

    return Estimate(spread(estimate.value), spread(estimate.low), spread(estimate.high))


def _references(runs: Sequence[Run]) -> tuple[Reference, ...]:
    """The solved threshold, and the baselines of the first group that learns."""
    found = []
    summary = runs[0].summary()
    learning = [name for name, group in runs[0].config().groups.items() if group.learner is not None]
    if summary is not None and learning:
        several = f" ({learning[0]})" if len(runs[0].config().groups) > 1 else ""
        for name in entry(runs[0], summary, "baselines"):
            value = number(runs[0], summary, "baselines", name, "groups", learning[0], "return_mean")
            found.append(Reference(f"{name}{several}", value))
    stop = runs[0].config().train.stop
    if stop is not None:
        found.append(Reference("solved", stop.return_mean, threshold=True))
    return tuple(found)
