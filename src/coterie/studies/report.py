"""Report: one HTML page for one run or several, with scores, curves, the world's section, exploitability and videos.

The page is a single file with its images inside. Runs that differ only in seed are drawn as a mean with its 95%
interval (`statistics.py`); runs of other settings have a part of their own. A learner class declares the panels of its
metrics (`core.group.HasPanels`), and a world class may add a section (`core.world.HasReportSection`); this module knows
neither. Search players have a section of positions (`search_section.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.config import registry
from coterie.config.schema import ConfigError, to_yaml
from coterie.core import lookup
from coterie.core.group import HasPanels, Panel
from coterie.core.types import CoterieError
from coterie.core.world import HasReportSection, ReportSection
from coterie.studies import html, search_section, statistics
from coterie.studies.compare.runs import compared_settings, make_labels
from coterie.studies.exploit import show as exploit_show
from coterie.studies.exploit.results import ExploitResult, read_result
from coterie.studies.statistics import bootstrap_stream
from coterie.training.run import Run, entry, number, write_text

MAX_POINTS = 200  # of a line with a band
AXES = {"env_steps": html.STEPS, "wall_s": html.SECONDS}  # key of a record -> label of the x axis
DEFAULT_PANELS = (  # of a learner that declares none; those whose metrics no run recorded are left out
    Panel("policy loss", "loss", ("policy_loss",)),
    Panel("value loss", "loss", ("value_loss", "loss")),
    Panel("mean action value", "value", ("q_mean",)),
    Panel("exploration", "share of random actions", ("epsilon",)),
    Panel("entropy", "nats", ("entropy",)),
    Panel("KL to the policy that acted", "nats", ("kl",)),
)


def write_report(runs: Sequence[Run], path: Path, figure: Path | None = None, numbers: Path | None = None) -> Path:
    """Write the page; on request also its figures as PNGs (F.png, F-NAME.png) and further results as JSON."""
    for run in runs:
        if not run.metrics():
            raise CoterieError(f"'{run.path}' has no records yet")
    variants = group_by_settings(runs)
    title = ", ".join(dict.fromkeys(run.config().experiment for run in runs))
    if figure is not None and len(variants) > 1:
        raise CoterieError(f"--figure shows runs of one setting, these are of several ({'; '.join(variants)})")
    sections = {label: _world_section(members) for label, members in variants.items()}
    exploited = {label: _exploit_results(members) for label, members in variants.items()}
    if numbers is not None:
        _write_numbers(numbers, sections, exploited)
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(variants) > 1:
        parts.append(f"<p class=quiet>{len(runs)} runs of {len(variants)} settings, one below the other.</p>")
    for label, members in variants.items():
        if len(variants) > 1:
            parts.append(f"<h1>{escape(label)}</h1>")
        parts += [*_scores(members), *_curves(members, figure)]
        if (section := sections[label]) is not None:
            parts += section.parts
            _write_section_figures(figure, section)
        parts += search_section.report_section(members)
        parts += [*exploit_show.report_section(exploited[label]), *_videos(members), *_configs(members)]
    return html.write_page(path, title, parts)


def group_by_settings(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only in seed, under their experiment's name and the settings in which experiments differ."""
    configs = [run.config() for run in runs]
    labels = make_labels([c.experiment for c in configs], [compared_settings(c) for c in configs])
    variants: dict[str, list[Run]] = {}
    for label, run in zip(labels, runs, strict=True):
        variants.setdefault(label, []).append(run)
    return variants


def default_path(runs: Sequence[Run]) -> Path:
    """Where a report goes: into its run, or into the directory that holds all runs."""
    if len(runs) == 1:
        return runs[0].path / "report.html"
    common = Path(os.path.commonpath([run.path.absolute().parent for run in runs]))
    if common == Path(common.anchor):
        raise ConfigError("--out: these runs have no directory in common; name the file to write")
    return (common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common) / "report.html"


def _world_section(runs: Sequence[Run]) -> ReportSection | None:
    """The section that the world of these runs adds; None where they play several worlds."""
    worlds = {run.config().world.name for run in runs}
    world = lookup.look_up(registry.WORLDS, worlds.pop())
    return world.report_section(runs) if not worlds and isinstance(world, HasReportSection) else None


def _write_section_figures(figure: Path | None, section: ReportSection) -> None:
    """Write a section's figures next to the figure of the curves."""
    if figure is not None:
        for name, png in section.pictures.items():
            html.write_png(figure.with_name(f"{figure.stem}-{name}{figure.suffix}"), png)


def _exploit_results(runs: Sequence[Run]) -> list[tuple[int, ExploitResult]]:
    """The seed and `exploit.json` of every run that has one."""
    return [(run.config().seed, result) for run in runs if (result := read_result(run)) is not None]


def _write_numbers(
    path: Path, sections: dict[str, ReportSection | None], exploited: dict[str, list[tuple[int, ExploitResult]]]
) -> None:
    """Write the numbers of the worlds' sections and the exploit results as JSON, by experiment."""
    found: dict[str, dict[str, Any]] = {}
    for name, section in sections.items():
        own = {} if section is None else section.numbers
        own = own | ({"exploit": [result.to_dict() for _, result in exploited[name]]} if exploited[name] else {})
        found |= {name: own} if own else {}
    if not found:
        raise CoterieError(
            "--numbers: these worlds have no numbers of their own, and no run has an exploit.json; "
            "scores are in every run's summary.json"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=1) + "\n")


# Scores -----------------------------------------------------------------------------------------------


def _scores(runs: Sequence[Run]) -> Iterable[str]:
    """A table of returns: the trained policies, those of step 0 and the baselines."""
    finished = [(run, summary) for run in runs if (summary := run.summary()) is not None]
    yield "<h2>Scores</h2>"
    if not finished:
        yield "<p class=quiet>The run has not finished; scores are computed at its end.</p>"
        return
    count = entry(*finished[0], "episodes")
    yield f"<p class=quiet>Greedy play, {count} held-out episodes (not used to train or to choose a checkpoint).</p>"
    yield "<table><tr><th>policy<th>seed<th>group<th>return<th>95% interval<th>length<th>success</tr>"
    for run, summary in finished:
        rows = {"best": ["evaluation"], "last": ["last"], "step 0": ["step_0"]}
        if "drawn" in summary:  # of taught groups
            rows |= {"best, actions drawn": ["drawn"], "step 0, actions drawn": ["step_0", "drawn"]}
        rows |= {name: ["baselines", name] for name in entry(run, summary, "baselines")}
        for policy, place in rows.items():
            yield from _score_rows(policy, run, summary, place)
    yield "</table>"
    for run, summary in finished:
        steps, seconds, speed = (number(run, summary, key) for key in ("env_steps", "wall_s", "steps_per_s"))
        chosen = f" Best: {summary['best_reason']}." if "best_reason" in summary else ""  # not in runs of 0.1
        yield (
            f"<p class=quiet>{escape(run.path.name)}: {steps:,} environment steps in {seconds:.0f} s, "
            f"{speed:,.0f} per second{', solved' if entry(run, summary, 'solved') else ''}.{chosen}</p>"
        )


def _score_rows(policy: str, run: Run, summary: dict[str, Any], place: list[str]) -> Iterable[str]:
    rate, seed = entry(run, summary, *place, "success_rate"), entry(run, summary, "seed")
    success = "–" if rate is None else f"{rate:.1%}"
    for group in entry(run, summary, *place, "groups"):
        mean, length = (number(run, summary, *place, "groups", group, key) for key in ("return_mean", "length_mean"))
        low, high = entry(run, summary, *place, "groups", group, "return_ci95")
        yield (
            f"<tr><td>{policy}<td>{seed}<td>{escape(group)}<td>{mean:.2f}"
            f"<td>[{low:.2f}, {high:.2f}]<td>{length:.1f}<td>{success}</tr>"
        )


# Curves -----------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One metric in a plot."""

    metric: str
    label: str
    colour: str


@dataclass(frozen=True)
class Plot:
    """Lines that are drawn together."""

    title: str
    unit: str  # label of the y axis
    lines: list[Line]
    x: str = "env_steps"


Records = list[dict[str, Any]]  # of one run


def _curves(runs: Sequence[Run], figure: Path | None) -> Iterable[str]:
    yield "<h2>Curves</h2>"
    png = draw_curves(runs)
    if figure is not None:
        html.write_png(figure, png)
    if len(runs) > 1:
        yield f"<p class=quiet>{_caption(len(runs))}</p>"
    yield html.image(png, "image/png", "returns, success, losses and entropy against environment steps and seconds")


def _caption(count: int) -> str:
    repetitions = f"{statistics.REPETITIONS:,} resamples"
    known = statistics.coverage_note("mean", count)
    lines = f"Lines: mean of {count} runs. Bands: its 95% interval by bootstrap, {repetitions} of the runs;"
    return f"{lines} {known} (measured, docs/guides/statistics.md)."


def draw_curves(runs: Sequence[Run]) -> bytes:
    """Plots of returns, success and the learners' metrics against environment steps and seconds, as a PNG."""
    from matplotlib.figure import Figure

    records = [run.metrics() for run in runs]
    recorded = {name for one in records for record in one for name in record}
    plots = [plot for plot in _plots(runs[0], records) if any(line.metric in recorded for line in plot.lines)]
    rows = -(-len(plots) // 2)
    figure = Figure(figsize=(11, 3.2 * rows), layout="constrained")
    for place, plot in enumerate(plots):
        axes = figure.add_subplot(rows, 2, place + 1)
        for line in plot.lines:
            _draw(axes, records, plot.x, line)
        if not axes.lines:
            html.annotate_panel(axes, f"no {'steps' if plot.x == 'env_steps' else 'seconds'} that all runs share")
        if plot.title.startswith("return"):
            _draw_references(axes, runs)
        html.label_panel(axes, plot.title, AXES[plot.x], plot.unit)
    if len(runs) > 1:
        figure.supxlabel(_caption(len(runs)), fontsize=8, color="#666666")
    return html.as_png(figure)


def _plots(run: Run, records: Sequence[Records]) -> list[Plot]:
    """Returns and success of every table, then the panels of its learners."""
    groups = list(run.config().groups)
    average = sorted({n for one in records for n in one[-1] if "/return_" in n and n.split("_")[-1].isdigit()})
    returns = [(name, f"{name.split('/')[0]}, training, {name.split('_')[-1]}-episode average") for name in average]
    returns += [(f"{g}/eval/return_mean", f"{g}, greedy") for g in groups]
    success = [("success_rate", "training"), ("eval/success_rate", "greedy")]
    return [
        Plot("return", "mean return", _coloured(returns)),
        Plot("return against time", "mean return", _coloured(returns), "wall_s"),
        Plot("success", "share of episodes", _coloured(success)),
        *_learner_plots(run),
    ]


def _coloured(lines: Sequence[tuple[str, str]]) -> list[Line]:
    return [Line(*line, html.COLOURS[i % len(html.COLOURS)]) for i, line in enumerate(lines)]


def _learner_plots(run: Run) -> list[Plot]:
    """The panels that the groups' learners declare; those of one title are one plot."""
    groups = run.config().groups
    plots: dict[str, Plot] = {}
    for i, (name, group) in enumerate(groups.items()):
        if group.learner is None:
            continue
        learner = lookup.look_up(registry.LEARNERS, group.learner.name)
        for panel in learner.panels if isinstance(learner, HasPanels) else DEFAULT_PANELS:
            plot = plots.setdefault(panel.title, Plot(panel.title, panel.unit, []))
            for m, metric in enumerate(panel.metrics):
                colour = html.COLOURS[(m * len(groups) + i) % len(html.COLOURS)]  # a group's colour in every panel
                label = name if len(panel.metrics) == 1 else f"{name}, {metric}"
                plot.lines.append(Line(f"{name}/{metric}", label, colour))
    return list(plots.values())


def _draw(axes: Any, records: Sequence[Records], x: str, line: Line) -> None:
    """Draw one metric: its mean over the runs, as far as all of them go, and the interval of that mean."""
    series = [[(r[x], r[line.metric]) for r in one if line.metric in r] for one in records]
    curves = [(at, values) for at, values in (np.array(points, float).T for points in series if points)]
    if not curves:
        return
    points, values = statistics.align(curves, MAX_POINTS if len(curves) > 1 else None)
    if len(points):
        estimate = statistics.stratified_bootstrap([values], statistics.mean, bootstrap_stream())
        html.draw_estimate(axes, points, estimate, line.label, line.colour)


def _draw_references(axes: Any, runs: Sequence[Run]) -> None:
    """Draw lines for the solved threshold and the baselines."""
    stop = runs[0].config().train.stop
    if stop is not None:
        axes.axhline(stop.return_mean, color="#3a7d44", linestyle="--", linewidth=1, label="solved")
    summary = runs[0].summary()
    learning = [name for name, group in runs[0].config().groups.items() if group.learner is not None]
    if summary is not None and learning:
        for style, name in zip(html.DASHES, entry(runs[0], summary, "baselines"), strict=False):
            value = number(runs[0], summary, "baselines", name, "groups", learning[0], "return_mean")
            axes.axhline(value, color="#888888", linestyle=style, linewidth=1, label=name)


# Videos and configs ---------------------------------------------------------------------------------------------


def _videos(runs: Sequence[Run]) -> Iterable[str]:
    videos = [video for run in runs for video in run.videos()[-1:]]
    if videos:
        yield "<h2>An episode of the best policy</h2>"
    for video in videos[:3]:
        yield html.image(video.read_bytes(), "image/gif", "an episode, played greedily")


def _configs(runs: Sequence[Run]) -> Iterable[str]:
    yield f"<h2>Config</h2><pre>{escape(to_yaml(runs[0].config()))}</pre>"
    listed = "".join(f"<li>{escape(str(run.path.name))}" for run in runs)
    yield f"<p class=quiet>Drawn from</p><ul class=quiet>{listed}</ul>"
