"""A comparison shown: as text of 80 columns, as CSV, as a drawing, as a page."""

from __future__ import annotations

import csv
import html
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.studies import html as page
from coterie.studies import statistics
from coterie.studies.compare.compare import Comparison, Standing, as_rows, curves, strata
from coterie.studies.statistics import Estimate

NAME_WIDTH = 30
FEW = 5  # runs; with fewer, docs/statistics.md measures how much bootstrap intervals promise too much
Row = list[str]


# Words ------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """A score with the digits that matter."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def bounded(estimate: Estimate) -> str:
    """A value with its interval, if it has one."""
    if estimate.low is None or estimate.high is None:
        return f"{number(float(estimate.value))} [–]"
    return f"{number(float(estimate.value))} [{number(float(estimate.low))}, {number(float(estimate.high))}]"


def score_rows(comparison: Comparison) -> list[Row]:
    """Contenders, then whom they are to be compared with."""
    rows = [
        [
            f"{place}  {one.contender.label}",
            str(one.seeds),
            bounded(one.aggregates["iqm"]),
            number(float(one.aggregates["mean"].value)),
            number(float(one.area.value)),
        ]
        for place, one in enumerate(comparison.standings, 1)
    ]
    return rows + [[f"   {name}", "", "", number(value), ""] for name, value in comparison.references.items()]


def reaching_rows(comparison: Comparison, world: str) -> list[Row]:
    """How soon the threshold was reached in a world."""
    rows = []
    for place, one in enumerate(comparison.standings, 1):
        found = one.reaching[world]
        middle = "not seen" if found.median is None else f"{found.median:,.0f}"
        reached = f"{found.reached}/{found.runs}"
        rows.append([f"{place}  {one.contender.label}", reached, middle, f"{found.restricted_mean:,.0f}"])
    return rows


def improvement_rows(comparison: Comparison) -> list[Row]:
    """Every pair, the likelier one first."""
    rows = []
    for (i, j), found in comparison.improvement.items():
        if found.value < 0.5:
            turned = [None if bound is None else 1 - bound for bound in (found.high, found.low)]
            i, j, found = j, i, Estimate(1 - found.value, *turned)
        rows.append([f"{i + 1} over {j + 1}", bounded(found)])
    return rows


SCORE_HEAD = ["contender", "runs", "IQM [95% interval]", "mean", "AUC"]
REACHING_HEAD = ["contender", "reached", "median steps", "mean steps"]
IMPROVEMENT_HEAD = ["pair", "probability [95% interval]"]


def notes(comparison: Comparison, scored: str, skipped: Sequence[Path]) -> list[str]:
    """What one has to know to read the numbers."""
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
        lines.append(f"left out, unfinished: {', '.join(map(str, skipped))}")
    return lines


def interval_notes(comparison: Comparison) -> list[str]:
    """What the intervals are, and for whom there is none."""
    fewest = [min(map(len, one.contender.runs.values())) for one in comparison.standings]
    lines = []
    if max(fewest) > 1:
        lines.append(f"intervals: 95%, stratified bootstrap over runs, {statistics.REPETITIONS:,} resamples")
    if any(1 < count < FEW for count in fewest):
        lines.append(f"few runs: intervals from fewer than {FEW} runs of a world are too narrow to be relied on")
    if min(fewest) == 1:
        lines.append(
            "lone runs: whoever has a single run of a world has no intervals [–]; one run says nothing of others"
        )
    return lines


def reaching_note(comparison: Comparison, world: str) -> str:
    """What the times to the threshold in a world are."""
    horizon = comparison.standings[0].reaching[world].horizon
    where = f" in {world}" if comparison.normalised else ""
    return (
        f"steps until the validation score{where} reaches {comparison.threshold:g}; runs that never did are kept "
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
    """Rows below their head; names that are too long stand on a line of their own."""
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
    """A long line as several of at most 80 columns."""
    lines = textwrap.wrap(text, 80, subsequent_indent="   ", break_on_hyphens=False, drop_whitespace=True)
    return lines or [text]


# Files ------------------------------------------------------------------------------------------------


def write_csv(comparison: Comparison, path: Path) -> None:
    """One row for every run; what does not apply is left empty."""
    rows = as_rows(comparison)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})


def write_page(comparison: Comparison, scored: str, path: Path, skipped: Sequence[Path] = ()) -> Path:
    """The same tables and the drawing as one HTML file."""
    labels = ", ".join(one.contender.label for one in comparison.standings)
    parts = ["<h1>Comparison</h1>", *(f"<p class=quiet>{html.escape(n)}" for n in notes(comparison, scored, skipped))]
    parts += ["<h2>Scores</h2>", page.table(SCORE_HEAD, score_rows(comparison))]
    if comparison.threshold is not None:
        parts.append("<h2>Steps to the threshold</h2>")
    for world in comparison.standings[0].reaching:
        parts.append(f"<p class=quiet>{html.escape(reaching_note(comparison, world))}")
        parts.append(page.table(REACHING_HEAD, reaching_rows(comparison, world)))
    if comparison.improvement:
        parts += ["<h2>Probability of improvement</h2>", page.table(IMPROVEMENT_HEAD, improvement_rows(comparison))]
    words = "learning curves, performance profile and interquartile means with 95% intervals"
    parts += ["<h2>Curves</h2>", page.picture(draw(comparison), "image/png", words)]
    return page.write_page(path, labels, parts)


# Drawing ----------------------------------------------------------------------------------------------


def draw(comparison: Comparison) -> bytes:
    """Curves against steps and seconds, performance profiles, interquartile means: a PNG."""
    from matplotlib.figure import Figure

    coloured = list(zip(comparison.standings, page.COLOURS * len(comparison.standings), strict=False))
    figure = Figure(figsize=(11, 7.5 + 0.25 * len(coloured)), layout="constrained")
    unit = "normalised return" if comparison.normalised else "return"
    _draw_curves(figure.add_subplot(2, 2, 1), comparison, coloured, "steps")
    page.dress(figure.axes[-1], f"validation {unit} against steps", page.STEPS, f"IQM of {unit}")
    _draw_curves(figure.add_subplot(2, 2, 2), comparison, coloured, "wall")
    page.dress(figure.axes[-1], f"validation {unit} against time", page.SECONDS, f"IQM of {unit}")
    axes = figure.add_subplot(2, 2, 3)
    for one, colour in coloured:
        page.draw_estimate(axes, comparison.thresholds, one.profile, "", colour, staircase=True)
    page.dress(axes, "performance profile", f"{unit} τ", "share of runs that score above τ")
    _draw_intervals(figure.add_subplot(2, 2, 4), comparison, coloured)
    page.dress(figure.axes[-1], "held-out score", f"{unit} (line: IQM, bar: 95% interval, dots: runs)", "contender")
    names = [figure.axes[0].plot([], [], color=colour, linewidth=3)[0] for _, colour in coloured]
    labels = [shortened(f"{place}  {one.contender.label}", 90) for place, (one, _) in enumerate(coloured, 1)]
    figure.legend(names, labels, loc="outside upper center", frameon=False, fontsize=9, ncols=1 + (len(labels) > 4))
    caption = f"Lines: interquartile means. Bands: 95% by stratified bootstrap, {statistics.REPETITIONS:,} resamples."
    figure.supxlabel(caption, fontsize=8, color="#666666")
    return page.as_png(figure)


def shortened(text: str, most: int) -> str:
    """The beginning of a long name."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _draw_curves(axes: Any, comparison: Comparison, coloured: Iterable[tuple[Standing, str]], axis: str) -> None:
    """Everybody's curve, or a word about whose runs have no stretch in common."""
    missing = []
    for place, (one, colour) in enumerate(coloured, 1):
        points, estimate = curves(one.contender, comparison.scales, axis)
        page.draw_estimate(axes, points, estimate, "", colour)
        missing += [] if len(points) else [str(place)]
    if missing:
        whose = "" if len(missing) == len(comparison.standings) else f" of {', '.join(missing)}"
        page.remark(axes, f"no {'steps' if axis == 'steps' else 'seconds'} that all runs{whose} share")
    _draw_references(axes, comparison)


def _draw_references(axes: Any, comparison: Comparison) -> None:
    """Lines for whom contenders are compared with, and for the threshold."""
    for dash, (name, value) in zip(page.DASHES, comparison.references.items(), strict=False):
        axes.axhline(value, color="#888888", linestyle=dash, linewidth=1, label=name)
    if comparison.threshold is not None:
        axes.axhline(comparison.threshold, color="#3a7d44", linestyle="--", linewidth=1, label="threshold")


def _draw_intervals(axes: Any, comparison: Comparison, coloured: Iterable[tuple[Standing, str]]) -> None:
    """Interquartile means with their intervals, and every run as a dot."""
    places = []
    for place, (one, colour) in enumerate(coloured):
        iqm = one.aggregates["iqm"]
        runs = np.concatenate(strata(one.contender, comparison.scales, lambda run: run.score))
        axes.plot(runs, np.full(len(runs), place + 0.22), ".", color=colour, alpha=0.6, markersize=6)
        if iqm.low is not None and iqm.high is not None:
            axes.plot([iqm.low, iqm.high], [place, place], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot(iqm.value, place, "|", color=colour, markersize=16, markeredgewidth=2.5)
        places.append(place)
    axes.set_yticks(places, [str(place + 1) for place in places])
    axes.set_ylim(len(places) - 0.4, -0.6)
