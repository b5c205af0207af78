"""The charts of a report: returns, success and the learners' metrics of runs that differ only in seed.

A group has one colour in every chart. What evaluations measured (greedy play) is a solid line, what training recorded
is faint. A learner class declares the panels of its metrics (`core.group.Panel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.config import registry
from coterie.core import lookup
from coterie.core.group import Panel
from coterie.runs.run import Run, entry, number
from coterie.studies import figures, statistics
from coterie.studies.figures import Chart, Reference, Series
from coterie.studies.statistics import bootstrap_stream

MAX_POINTS = 200  # of a line with a band
AXES = {"env_steps": figures.STEPS, "wall_s": figures.TRAINING}  # key of a record -> label of the x axis
DEFAULT_PANELS = (  # of a learner that declares none; those whose metrics no run recorded are left out
    Panel("policy loss", "loss", ("policy_loss",)),
    Panel("value loss", "loss", ("value_loss", "loss")),
    Panel("mean action value", "value", ("q_mean",)),
    Panel("exploration", "share of random actions", ("epsilon",)),
    Panel("entropy", "nats", ("entropy",)),
    Panel("KL to the policy that acted", "nats", ("kl",)),
)
Records = list[dict[str, Any]]  # of one run


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
    records = [_from_step_0(run.metrics()) for run in runs]
    recorded = {name for one in records for record in one for name in record}
    plots = [plot for plot in _plots(runs[0], records) if any(line.metric in recorded for line in plot.lines)]
    return [_chart(plot, runs, records) for plot in plots]


def _from_step_0(records: Records) -> Records:
    """The records with seconds since step 0 was evaluated, which may take longer than a short training."""
    before = records[0]["wall_s"] if records[0].get("env_steps") == 0 else 0.0
    return [record | {"wall_s": record["wall_s"] - before} for record in records]


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
    names = {n for one in records for n in one[-1] if "/return_" in n and n.split("_")[-1].isdigit()}
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
        learner = lookup.look_up(registry.LEARNERS, group.learner.name)
        for panel in getattr(learner, "panels", DEFAULT_PANELS):
            plot = plots.setdefault(panel.title, Plot(panel.title, panel.unit))
            for m, metric in enumerate(panel.metrics):
                label = name if len(panel.metrics) == 1 else f"{name}, {metric.replace('_', ' ')}"
                plot.lines.append(Line(f"{name}/{metric}", label, colours[name], dash=m))
    return list(plots.values())


def _series(records: Sequence[Records], x: str, line: Line) -> Series | None:
    """One metric: its mean over the runs, as far as all of them go, and the interval of that mean."""
    series = [[(r[x], r[line.metric]) for r in one if line.metric in r] for one in records]
    curves = [(at, values) for at, values in (np.array(points, float).T for points in series if points)]
    if not curves:
        return None
    points, values = statistics.align(curves, MAX_POINTS if len(curves) > 1 else None)
    if not len(points):
        return None
    estimate = statistics.stratified_bootstrap([values], statistics.mean, bootstrap_stream())
    return Series(line.label, line.colour, points, estimate, line.faint, line.dash)


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
