"""Shows a comparison: as text of 80 columns, as JSON and CSV, as a figure, as an HTML page."""

from __future__ import annotations

import csv
import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from coterie.studies import html, statistics
from coterie.studies.compare.compare import Comparison, Standing, area, curves, frames, strata
from coterie.studies.statistics import Estimate

NAME_WIDTH = 30
FEW = 20  # runs of a world; with fewer, bootstrap intervals are too narrow: docs/guides/statistics.md has measurements
Row = list[str]


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
            f"{place}  {one.variant.label}",
            str(one.seeds),
            bounded(one.aggregates["iqm"]),
            number(float(one.aggregates["mean"].value)),
            number(float(one.area.value)),
        ]
        for place, one in enumerate(comparison.standings, 1)
    ]
    return rows + [[f"   {name}", "", "", number(value), ""] for name, value in comparison.references.items()]


def reaching_rows(comparison: Comparison, world: str) -> list[Row]:
    """Steps to the threshold in one world."""
    rows = []
    for place, one in enumerate(comparison.standings, 1):
        found = one.reaching[world]
        median = "not reached" if found.median is None else f"{found.median:,.0f}"
        reached = f"{found.reached}/{found.runs}"
        rows.append([f"{place}  {one.variant.label}", reached, median, f"{found.restricted_mean:,.0f}"])
    return rows


def improvement_rows(comparison: Comparison) -> list[Row]:
    """Every pair of variants, the likelier winner first."""
    rows = []
    for (i, j), found in comparison.improvement.items():
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
    what = "normalised return" if comparison.normalised else "return"
    lines.append(f"score: {what} of the {scored} policies, greedy, on held-out episodes")
    for world, scale in comparison.scales.items():
        if comparison.normalised:
            reference = f"{scale.source} = 1 at {number(scale.reference)}"
            lines.append(f"scale of {world}: random play = 0 at {number(scale.random)}, {reference}")
    lines += interval_notes(comparison)
    ends = sorted({f"{end:,.0f}" for end in comparison.ends.values()})
    lines.append(f"AUC: area under the validation curve, as its mean height, up to {' or '.join(ends)} steps")
    if skipped:
        lines.append(f"skipped, unfinished: {', '.join(map(str, skipped))}")
    return lines


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
    """How far intervals can be trusted, for the variant with the fewest runs that has one; nothing from FEW runs on."""
    fewest = [min(map(len, one.variant.runs.values())) for one in comparison.standings]
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
    if comparison.improvement:
        lines += ["", "probability that a run of one beats a run of the other (a tie counts half)"]
        lines += columns(IMPROVEMENT_HEAD, improvement_rows(comparison))
    return "\n".join(lines)


def columns(head: Row, rows: list[Row]) -> list[str]:
    """Rows below their head; a name that is too long gets its own line."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    widths[0] = min(widths[0], NAME_WIDTH)

    def line(row: Row) -> str:
        rest = "".join(f"  {word:>{width}}" for word, width in zip(row[1:], widths[1:], strict=True))
        return f"{row[0]:{widths[0]}}{rest}".rstrip()

    lines = [line(head)]
    for row in rows:
        if len(row[0]) > widths[0]:
            lines += [*fold(row[0]), line(["", *row[1:]])]
        else:
            lines.append(line(row))
    return lines


def fold(text: str) -> list[str]:
    """Wrap a long line at 80 columns."""
    lines = textwrap.wrap(text, 80, subsequent_indent="   ", break_on_hyphens=False, drop_whitespace=True)
    return lines or [text]


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
                }
            )
    return rows


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write one row for every run; values that do not apply are empty."""
    rows = as_rows(comparison)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})


def write_page(comparison: Comparison, scored: str, path: Path, skipped: Sequence[Path] = ()) -> Path:
    """Write the tables and the figure as one HTML file."""
    labels = ", ".join(one.variant.label for one in comparison.standings)
    parts = ["<h1>Comparison</h1>", *(f"<p class=quiet>{escape(n)}" for n in notes(comparison, scored, skipped))]
    parts += ["<h2>Scores</h2>", html.table(SCORE_HEAD, score_rows(comparison))]
    if comparison.threshold is not None:
        parts.append("<h2>Steps to the threshold</h2>")
    for world in comparison.standings[0].reaching:
        parts.append(f"<p class=quiet>{escape(reaching_note(comparison, world))}")
        parts.append(html.table(REACHING_HEAD, reaching_rows(comparison, world)))
    if comparison.improvement:
        parts += ["<h2>Probability of improvement</h2>", html.table(IMPROVEMENT_HEAD, improvement_rows(comparison))]
    words = "learning curves, performance profile and interquartile means with 95% intervals"
    parts += ["<h2>Curves</h2>", html.image(draw(comparison), "image/png", words)]
    return html.write_page(path, labels, parts)


# Figure -----------------------------------------------------------------------------------------------


def draw(comparison: Comparison) -> bytes:
    """Curves against steps and seconds, performance profiles and interquartile means, as a PNG."""
    from matplotlib.figure import Figure

    coloured = list(zip(comparison.standings, html.COLOURS * len(comparison.standings), strict=False))
    figure = Figure(figsize=(11, 7.5 + 0.25 * len(coloured)), layout="constrained")
    unit = "normalised return" if comparison.normalised else "return"
    _draw_curves(figure.add_subplot(2, 2, 1), comparison, coloured, "steps")
    html.label_panel(figure.axes[-1], f"validation {unit} against steps", html.STEPS, f"IQM of {unit}")
    _draw_curves(figure.add_subplot(2, 2, 2), comparison, coloured, "wall")
    html.label_panel(figure.axes[-1], f"validation {unit} against time", html.SECONDS, f"IQM of {unit}")
    axes = figure.add_subplot(2, 2, 3)
    for one, colour in coloured:
        html.draw_estimate(axes, comparison.thresholds, one.profile, "", colour, staircase=True)
    html.label_panel(axes, "performance profile", f"{unit} τ", "share of runs that score above τ")
    _draw_intervals(figure.add_subplot(2, 2, 4), comparison, coloured)
    html.label_panel(figure.axes[-1], "held-out score", f"{unit} (line: IQM, bar: 95% interval, dots: runs)", "variant")
    names = [figure.axes[0].plot([], [], color=colour, linewidth=3)[0] for _, colour in coloured]
    labels = [shortened(f"{place}  {one.variant.label}", 90) for place, (one, _) in enumerate(coloured, 1)]
    figure.legend(names, labels, loc="outside upper center", frameon=False, fontsize=9, ncols=1 + (len(labels) > 4))
    caption = f"Lines: interquartile means. Bands: 95% by stratified bootstrap, {statistics.REPETITIONS:,} resamples."
    figure.supxlabel("\n".join([caption, *few_runs_note(comparison)]), fontsize=8, color="#666666")
    return html.as_png(figure)


def shortened(text: str, limit: int) -> str:
    """Cut a long name at its end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _draw_curves(axes: Any, comparison: Comparison, coloured: Iterable[tuple[Standing, str]], axis: str) -> None:
    """Draw the variants' curves; a text names those whose runs have no steps or seconds in common."""
    missing = []
    for place, (one, colour) in enumerate(coloured, 1):
        points, estimate = curves(one.variant, comparison.scales, axis)
        html.draw_estimate(axes, points, estimate, "", colour)
        missing += [] if len(points) else [str(place)]
    if missing:
        of_which = "" if len(missing) == len(comparison.standings) else f" of {', '.join(missing)}"
        html.annotate_panel(axes, f"no {'steps' if axis == 'steps' else 'seconds'} that all runs{of_which} share")
    _draw_references(axes, comparison)


def _draw_references(axes: Any, comparison: Comparison) -> None:
    """Draw lines for the baselines and the threshold."""
    for dash, (name, value) in zip(html.DASHES, comparison.references.items(), strict=False):
        axes.axhline(value, color="#888888", linestyle=dash, linewidth=1, label=name)
    if comparison.threshold is not None:
        axes.axhline(comparison.threshold, color="#3a7d44", linestyle="--", linewidth=1, label="threshold")


def _draw_intervals(axes: Any, comparison: Comparison, coloured: Iterable[tuple[Standing, str]]) -> None:
    """Draw interquartile means with their intervals, and every run as a dot."""
    places = []
    for place, (one, colour) in enumerate(coloured):
        iqm = one.aggregates["iqm"]
        runs = np.concatenate(strata(one.variant, comparison.scales, lambda run: run.score))
        axes.plot(runs, np.full(len(runs), place + 0.22), ".", color=colour, alpha=0.6, markersize=6)
        if iqm.low is not None and iqm.high is not None:
            axes.plot([iqm.low, iqm.high], [place, place], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot(iqm.value, place, "|", color=colour, markersize=16, markeredgewidth=2.5)
        places.append(place)
    axes.set_yticks(places, [str(place + 1) for place in places])
    axes.set_ylim(len(places) - 0.4, -0.6)
