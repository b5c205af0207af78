"""Shows a comparison: as text of 80 columns, as JSON and CSV, as a figure, as an HTML page."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Array
from coterie.studies import figures, html, interactive, statistics
from coterie.studies.columns import Row, columns, fold
from coterie.studies.compare.compare import Comparison, Standing, area, curves, frames, strata
from coterie.studies.compare.runs import CHANGED
from coterie.studies.figures import Chart, Reference, Series
from coterie.studies.statistics import Estimate

FEW = 20  # runs of a world; with fewer, bootstrap intervals are too narrow: docs/guides/statistics.md has measurements


# Text -------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """A score, with fewer decimal places for larger ones."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def bounded(estimate: Estimate) -> str:
    """A value with its interval, if it has one."""
    if estimate.low is None or estimate.high is None:
        return f"{number(float(estimate.value))} [–]"
    return f"{number(float(estimate.value))} [{number(float(estimate.low))}, {number(float(estimate.high))}]"


def score_rows(comparison: Comparison) -> list[Row]:
    """The variants, then the baselines."""
    rows = [
        [
            name,
            str(one.seeds),
            bounded(one.aggregates["iqm"]),
            number(float(one.aggregates["mean"].value)),
            number(float(one.area.value)),
        ]
        for name, one in zip(_names(comparison), comparison.standings, strict=True)
    ]
    return rows + [[f"   {name}", "", "", number(value), ""] for name, value in comparison.references.items()]


def reaching_rows(comparison: Comparison, world: str) -> list[Row]:
    """Steps to the threshold in one world."""
    rows = []
    for name, one in zip(_names(comparison), comparison.standings, strict=True):
        found = one.reaching[world]
        median = "not reached" if found.median is None else f"{found.median:,.0f}"
        reached = f"{found.reached}/{found.runs}"
        rows.append([name, reached, median, f"{found.restricted_mean:,.0f}"])
    return rows


def _names(comparison: Comparison) -> list[str]:
    return short_labels([one.variant.label for one in comparison.standings])


def improvement_rows(comparison: Comparison) -> list[Row]:
    """Every pair of variants, the likelier winner first; a pair of two single runs says nothing."""
    single = [sum(map(len, one.variant.runs.values())) == 1 for one in comparison.standings]
    rows = []
    for (i, j), found in comparison.improvement.items():
        if single[i] and single[j]:
            continue
        if found.value < 0.5:
            reversed_bounds = [None if bound is None else 1 - bound for bound in (found.high, found.low)]
            i, j, found = j, i, Estimate(1 - found.value, *reversed_bounds)
        rows.append([f"{i + 1} over {j + 1}", bounded(found)])
    return rows


SCORE_HEAD = ["variant", "runs", "IQM [95% interval]", "mean", "AUC"]
REACHING_HEAD = ["variant", "reached", "median steps", "mean steps"]
IMPROVEMENT_HEAD = ["pair", "probability [95% interval]"]


def notes(comparison: Comparison, scored: str, skipped: Sequence[Path]) -> list[str]:
    """Notes that explain the numbers."""
    worlds = list(comparison.scales)
    lines = [f"{'world' if len(worlds) == 1 else 'worlds'}: {', '.join(worlds)}"]
    shared = shared_experiment([one.variant.label for one in comparison.standings])
    lines += [f"experiment: {shared}"] if shared else []
    what = "normalised return" if comparison.normalised else "return"
    lines.append(f"score: {what} of the {scored} policies, greedy, on held-out episodes")
    for world, scale in comparison.scales.items():
        if comparison.normalised:
            reference = f"{scale.source} = 1 at {number(scale.reference)}"
            lines.append(f"scale of {world}: random play = 0 at {number(scale.random)}, {reference}")
    lines += changed_notes(comparison)
    lines += interval_notes(comparison)
    ends = sorted({f"{end:,.0f}" for end in comparison.ends.values()})
    lines.append(f"AUC: area under the validation curve, as its mean height, up to {' or '.join(ends)} steps")
    if skipped:
        lines.append(f"skipped, unfinished: {', '.join(map(str, skipped))}")
    return lines


def changed_notes(comparison: Comparison) -> list[str]:
    """A note on every run whose settings changed while it trained."""
    runs = [run for one in comparison.standings for runs in one.variant.runs.values() for run in runs]
    return [f"changed on the way: {run.path} {run.settings[CHANGED]}" for run in runs if CHANGED in run.settings]


def interval_notes(comparison: Comparison) -> list[str]:
    """Notes on the intervals, and on variants without them."""
    fewest = [min(map(len, one.variant.runs.values())) for one in comparison.standings]
    lines = []
    if max(fewest) > 1:
        lines.append(f"intervals: 95%, stratified bootstrap over runs, {statistics.REPETITIONS:,} resamples")
    lines += few_runs_note(comparison)
    if min(fewest) == 1:
        lines.append("single runs: a variant with one run of a world has no intervals [–]")
    return lines


def few_runs_note(comparison: Comparison) -> list[str]:
    """A note on the coverage of intervals, for the variant with the fewest runs that has one; [] from FEW runs on."""
    return _few_runs([min(map(len, one.variant.runs.values())) for one in comparison.standings])


def _few_runs(fewest: Sequence[int]) -> list[str]:
    several = [count for count in fewest if count > 1]
    few = several and min(several) < FEW
    return [f"few runs: {statistics.coverage_note('IQM', min(several))}"] if few else []


def reaching_note(comparison: Comparison, world: str) -> str:
    """A note on the steps to the threshold in one world."""
    horizon = comparison.standings[0].reaching[world].horizon
    where = f" in {world}" if comparison.normalised else ""
    return (
        f"steps until the validation score{where} reaches {comparison.threshold:g}; runs that did not reach it count "
        f"as censored (median: Kaplan–Meier; mean: up to {horizon:,.0f} steps)"
    )


def as_table(comparison: Comparison, scored: str, skipped: Sequence[Path] = ()) -> str:
    """The comparison as text."""
    lines = [*(part for note in notes(comparison, scored, skipped) for part in fold(note)), ""]
    lines += columns(SCORE_HEAD, score_rows(comparison))
    for world in comparison.standings[0].reaching:
        note, rows = reaching_note(comparison, world), reaching_rows(comparison, world)
        lines += ["", *fold(note), *columns(REACHING_HEAD, rows)]
    if rows := improvement_rows(comparison):
        lines += ["", "probability that a run of one beats a run of the other (a tie counts half)"]
        lines += columns(IMPROVEMENT_HEAD, rows)
    return "\n".join(lines)


# JSON and files --------------------------------------------------------------------------------------


def _coverage_to_dict(comparison: Comparison, statistic: statistics.Covered) -> dict[str, float] | None:
    """The measured coverage for the variant with the fewest runs of a world; None where that is one run."""
    fewest = min(len(runs) for one in comparison.standings for runs in one.variant.runs.values())
    return statistics.coverage(statistic, fewest)._asdict() if fewest > 1 else None


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON."""
    several = comparison.normalised
    labels = [one.variant.label for one in comparison.standings]
    return {
        "worlds": {
            world: {"area_up_to": comparison.ends[world], "scale": dataclasses.asdict(scale) if several else None}
            for world, scale in comparison.scales.items()
        },
        "interval": {
            "level": statistics.LEVEL,
            "method": "stratified bootstrap, percentiles",
            "repetitions": statistics.REPETITIONS,
            "coverage": {name: _coverage_to_dict(comparison, name) for name in statistics.COVERAGE},
        },
        "threshold": comparison.threshold,
        "variants": [_standing_to_dict(comparison, one) for one in comparison.standings],
        "probability_of_improvement": [
            {"of": labels[i], "over": labels[j]} | found.to_dict() for (i, j), found in comparison.improvement.items()
        ],
        "references": comparison.references,
        "profile_thresholds": comparison.thresholds.tolist(),
    }


def _standing_to_dict(comparison: Comparison, standing: Standing) -> dict[str, Any]:
    x = {axis: curves(standing.variant, comparison.scales, axis) for axis in ("steps", "wall")}
    return {
        "label": standing.variant.label,
        "seeds": standing.seeds,
        **{name: found.to_dict() for name, found in standing.aggregates.items()},
        "area_under_curve": standing.area.to_dict(),
        "performance_profile": standing.profile.to_dict(),
        "frames_to_threshold": {w: dataclasses.asdict(r) for w, r in standing.reaching.items()} or None,
        "curves": {axis: {"at": points.tolist()} | found.to_dict() for axis, (points, found) in x.items()},
        "runs": _rows(comparison, standing),
    }


def as_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for every run, in returns of its world."""
    return [row for standing in comparison.standings for row in _rows(comparison, standing)]


def _rows(comparison: Comparison, standing: Standing) -> list[dict[str, Any]]:
    rows = []
    for world, runs in standing.variant.runs.items():
        scale, threshold = comparison.scales[world], comparison.threshold
        for run in runs:
            took = None if threshold is None else frames(run, scale, threshold)
            rows.append(
                {
                    "variant": standing.variant.label,
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
                    "changed": run.settings.get(CHANGED, ""),
                }
            )
    return rows


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write one row for every run; values that do not apply are empty."""
    rows = as_rows(comparison)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})


def write_page(comparison: Comparison, scored: str, path: Path, skipped: Sequence[Path] = ()) -> Path:
    """Write the tables and the charts as one HTML file."""
    labels = ", ".join(one.variant.label for one in comparison.standings)
    parts = ["<h1>Comparison</h1>", *page_parts(comparison, scored, skipped, path), interactive.scripts()]
    return html.write_page(path, labels, parts)


def page_parts(
    comparison: Comparison, scored: str, skipped: Sequence[Path] = (), page: Path | None = None
) -> Iterable[str]:
    """Tables and charts of a comparison as HTML; `page` is the file next to which pictures are written, too."""
    explained = [f"<p class=quiet>{escape(note)}</p>" for note in notes(comparison, scored, skipped)]
    yield html.table(SCORE_HEAD, score_rows(comparison))
    yield html.folded("What these numbers are", explained)
    if comparison.threshold is not None:
        yield "<h3>Steps to the threshold</h3>"
    for world in comparison.standings[0].reaching:
        yield f"<p class=quiet>{escape(reaching_note(comparison, world))}</p>"
        yield html.table(REACHING_HEAD, reaching_rows(comparison, world))
    yield "<div class=charts>"
    for chart in charts(comparison):
        png = draw_chart(chart)
        if page is not None:
            figures.write_beside(page, f"overview {chart.title}", png)
        yield interactive.figure(chart, html.image(png, "image/png", f"{chart.title} against {chart.x}"))
    yield "</div>"
    words = "learning curves, performance profile and interquartile means with 95% intervals"
    png = draw(comparison)
    if page is not None:
        figures.write_beside(page, "overview", png)
    picture = html.wide_image(png, "image/png", words)  # it has the charts above once more: not open from the beginning
    yield html.folded("One picture of all: intervals, profiles and every variant's own band", [picture])
    if rows := improvement_rows(comparison):
        table = html.table(IMPROVEMENT_HEAD, rows)
        words = "Probability that a run of one beats a run of the other (a tie counts half)"
        yield html.folded(words, [table], len(comparison.standings) <= figures.MANY)


# Figure -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """The curve and the intervals of one variant, as they are drawn."""

    label: str
    curves: dict[str, tuple[Array, Estimate]]  # steps, wall -> points and interquartile means
    profile: Estimate
    iqm: Estimate
    scores: Array  # of every run


@dataclass(frozen=True)
class Picture:
    """The numbers of the figure; they are all in the comparison's JSON, too."""

    variants: list[Drawn]
    thresholds: Array  # of the profiles
    references: tuple[Reference, ...]
    unit: str
    notes: list[str]

    def series(self, axis: str, named: bool = False) -> list[Series]:
        """The variants' curves; each has its colour, and dashes once colours repeat."""
        found, names = [], short_labels([one.label for one in self.variants], 60)
        for place, one in enumerate(self.variants):
            points, estimate = one.curves[axis]
            label, dashes = names[place] if named else "", place // len(figures.COLOURS)
            found.append(Series(label, figures.colour(place), points, estimate, dash=dashes))
        return found


def picture_of(comparison: Comparison) -> Picture:
    """The picture of a comparison."""
    variants = [
        Drawn(
            one.variant.label,
            {axis: curves(one.variant, comparison.scales, axis) for axis in ("steps", "wall")},
            one.profile,
            one.aggregates["iqm"],
            np.concatenate(strata(one.variant, comparison.scales, lambda run: run.score)),
        )
        for one in comparison.standings
    ]
    unit = "normalised return" if comparison.normalised else "return"
    references = _references(comparison.references, comparison.threshold)
    return Picture(variants, comparison.thresholds, references, unit, few_runs_note(comparison))


def picture_from_dict(found: Mapping[str, Any]) -> Picture:
    """The picture of a comparison that was written as JSON (`to_dict`)."""

    def estimate(one: Mapping[str, Any]) -> Estimate:
        low, high = one["interval"] or (None, None)
        return Estimate(np.array(one["value"]), *(None if side is None else np.array(side) for side in (low, high)))

    several = len(found["worlds"]) > 1
    variants = [
        Drawn(
            one["label"],
            {axis: (np.array(curve["at"]), estimate(curve)) for axis, curve in one["curves"].items()},
            estimate(one["performance_profile"]),
            estimate(one["iqm"]),
            np.array([run["normalised" if several else "score"] for run in one["runs"]], float),
        )
        for one in found["variants"]
    ]
    counts = [min(Counter(run["world"] for run in one["runs"]).values()) for one in found["variants"]]
    references = _references(found["references"], found["threshold"])
    unit = "normalised return" if several else "return"
    return Picture(variants, np.array(found["profile_thresholds"]), references, unit, _few_runs(counts))


def charts(comparison: Comparison) -> list[Chart]:
    """The learning curves against steps and seconds, as charts of a page."""
    picture, found = picture_of(comparison), []
    for axis, label in (("steps", figures.STEPS), ("wall", figures.TRAINING)):
        series = tuple(one for one in picture.series(axis, named=True) if len(one.x))
        note = "" if series else f"no {'steps' if axis == 'steps' else 'seconds'} that all runs share"
        title = f"validation {picture.unit}" + (" against time" if axis == "wall" else "")
        found.append(Chart(title, label, f"IQM of {picture.unit}", series, picture.references, note=note))
    return found


def draw_chart(chart: Chart) -> bytes:
    """One chart of a page as a PNG."""
    return figures.chart_as_png(chart)


def _references(scores: Mapping[str, float], threshold: float | None) -> tuple[Reference, ...]:
    """The baselines and the threshold."""
    known = [Reference(name, value) for name, value in scores.items()]
    return (*known, *([] if threshold is None else [Reference("threshold", threshold, threshold=True)]))


def draw(comparison: Comparison) -> bytes:
    """Curves against steps and seconds, performance profiles and interquartile means, as a PNG."""
    return draw_picture(picture_of(comparison))


def draw_picture(picture: Picture) -> bytes:
    """The figure as a PNG.

    The bands of more than a few variants would hide each other: then every variant has a small panel with its own.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count, unit = len(picture.variants), picture.unit
    small = -(-count // 4) if count > figures.MANY else 0  # rows of small panels
    names = -(-count // (1 + (count > 4)))  # lines of the legend
    heights = [3.4, 3.4, *[2.0] * small]
    apart = ConstrainedLayoutEngine(hspace=0.08)  # titles stay clear of the labels above them
    figure = Figure(figsize=(12, sum(heights) + 0.3 * names + 0.5), layout=apart)
    rows = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    above, below = rows[0].subgridspec(1, 2), rows[1].subgridspec(1, 2)
    _draw_curves(figure.add_subplot(above[0]), picture, "steps")
    figures.label_panel(figure.axes[-1], f"validation {unit} against steps", figures.STEPS, f"IQM of {unit}")
    _draw_curves(figure.add_subplot(above[1]), picture, "wall")
    figures.label_panel(figure.axes[-1], f"validation {unit} against time", figures.TRAINING, f"IQM of {unit}")
    axes = figure.add_subplot(below[0])
    for place, one in enumerate(picture.variants):
        line = Series("", figures.colour(place), picture.thresholds, one.profile, dash=place // len(figures.COLOURS))
        figures.draw_series(axes, line, band=count <= figures.MANY, staircase=True)
    figures.label_panel(axes, "performance profile", f"{unit} τ", "share of runs above τ")
    axes.set_ylim(-0.03, 1.03)
    _draw_intervals(figure.add_subplot(below[1]), picture)
    words = f"{unit} (line: IQM, bar: 95% interval, dots: runs)"
    figures.label_panel(figure.axes[-1], "held-out score", words, "variant")
    for row in range(small):
        _draw_small(figure, rows[2 + row].subgridspec(1, 4), picture, range(4 * row, min(4 * row + 4, count)))
    _draw_names(figure, picture)
    caption = f"Lines: interquartile means. Bands: 95% by stratified bootstrap, {statistics.REPETITIONS:,} resamples."
    figure.supxlabel("\n".join([caption, *picture.notes]), fontsize=8, color=figures.TEXT)
    return figures.as_png(figure)


def _draw_small(figure: Any, grid: Any, picture: Picture, places: Iterable[int]) -> None:
    """One panel for each of some variants: its curve with its band, the others in grey."""
    every = picture.series("steps")
    for column, place in enumerate(places):
        axes = figure.add_subplot(grid[column])
        for one in every:
            axes.plot(one.x, one.estimate.value, color="#cccccc", linewidth=0.8)
        figures.draw_series(axes, every[place])
        figures.label_panel(axes, f"{place + 1}", figures.STEPS, "")
        axes.tick_params(labelsize=7)


def _draw_names(figure: Any, picture: Picture) -> None:
    """The variants and the references, above all panels."""
    handles, labels = [], short_labels([one.label for one in picture.variants], 80)
    for place in range(len(labels)):
        style = {"color": figures.colour(place), "linestyle": figures.dash(place)}
        handles.append(figure.axes[0].plot([], [], linewidth=3, **style)[0])
    known = [pair for pair in zip(*figure.axes[0].get_legend_handles_labels(), strict=True) if pair[1]]
    handles += [handle for handle, _ in known]
    labels += [label for _, label in known]
    columns = 2 if len(labels) > 4 else 1
    figure.legend(handles, labels, loc="outside upper left", frameon=False, fontsize=9, ncols=columns)


def short_labels(variants: Sequence[str], limit: int | None = None) -> list[str]:
    """The variants' numbers and labels, without the experiment where all share it."""
    shared = shared_experiment(variants)
    labels = [f"{place}  {label.removeprefix(f'{shared} ')}" for place, label in enumerate(variants, 1)]
    return labels if limit is None else [shortened(label, limit) for label in labels]


def shared_experiment(variants: Sequence[str]) -> str:
    """The experiment of variants that differ in settings alone; "" for others."""
    names = [label.partition(" ") for label in variants]
    same = len({name for name, _, _ in names}) == 1 and all(rest for _, _, rest in names)
    return names[0][0] if same else ""


def shortened(text: str, limit: int) -> str:
    """Cut a long name at its end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _draw_curves(axes: Any, picture: Picture, axis: str) -> None:
    """Draw the variants' curves; a text names those whose runs have no steps or seconds in common."""
    every = picture.series(axis)
    for one in every:
        figures.draw_series(axes, one, band=len(every) <= figures.MANY)
    missing = [str(place) for place, one in enumerate(every, 1) if not len(one.x)]
    if missing:
        of_which = "" if len(missing) == len(every) else f" of {', '.join(missing)}"
        figures.annotate_panel(axes, f"no {'steps' if axis == 'steps' else 'seconds'} that all runs{of_which} share")
    figures.draw_references(axes, picture.references)


def _draw_intervals(axes: Any, picture: Picture) -> None:
    """Draw interquartile means with their intervals, and every run as a dot."""
    places = range(len(picture.variants))
    for place, one in enumerate(picture.variants):
        iqm, colour, runs = one.iqm, figures.colour(place), one.scores
        axes.plot(runs, np.full(len(runs), place + 0.22), ".", color=colour, alpha=0.6, markersize=6)
        if iqm.low is not None and iqm.high is not None:
            axes.plot([iqm.low, iqm.high], [place, place], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot(iqm.value, place, "|", color=colour, markersize=16, markeredgewidth=2.5)
    axes.set_yticks(places, [str(place + 1) for place in places])
    axes.set_ylim(len(places) - 0.4, -0.6)
