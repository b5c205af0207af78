"""The style of every figure, in reports and in the documentation: colours, lines, labels, legends.

Colours are Okabe and Ito's (2008, "Color Universal Design"), which people with any colour vision tell apart; their
yellow, too pale on white, is left out. From the ninth line on, dashes repeat the colours. A `Chart` holds the numbers
of one panel; it is drawn here as a PNG, and in `interactive.py` for a browser.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Array
from coterie.studies.statistics import Estimate

STEPS, TRAINING = "environment steps", "seconds of training"  # labels of x axes
TURN = "turn"  # label of an axis of whole numbers
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#e69f00", "#56b4e9", "#8c643c", "#444444"),
)
NEUTRAL, REFERENCE, THRESHOLD, TEXT = "#333333", "#888888", "#111111", "#666666"
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)))  # of lines of one colour
REFERENCE_DASHES: tuple[Any, ...] = (":", "-.", (0, (3, 1, 1, 1, 1, 1)), (0, (6, 2)))  # of reference scores
FAINT = 0.4  # opacity of what training recorded, next to evaluations
BAND = 0.16  # opacity of an interval
MARKED = 3  # points of a line up to which each has a dot: what lies between them was not measured
MANY = 4  # lines of one panel from which on bands would hide each other
HEAT = "cividis"  # of matrices: monotone in lightness, the same for colour-blind people
DPI = 110
LEGEND_GAP = 0.52  # inches from the axes to a legend below them: room for ticks and the axis' label
MARGIN = 0.08  # inches between the labels of neighbouring panels, and to the figure's edges


def colour(number: int) -> str:
    """The colour of the line with this number."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> Any:
    """The dashes of the line with this number: solid while colours last."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


@dataclass(frozen=True)
class Series:
    """One line of a chart, with its band where it has one."""

    label: str
    colour: str
    x: Array  # [T]
    estimate: Estimate  # [T]
    faint: bool = False  # recorded in training, next to an evaluation
    dash: int = 0  # of DASHES


@dataclass(frozen=True)
class Reference:
    """A horizontal line: a score to compare with."""

    label: str
    value: float
    threshold: bool = False  # of `train.stop`, not of a player


@dataclass(frozen=True)
class Chart:
    """The numbers of one panel."""

    title: str
    x: str  # label of the axis
    y: str
    series: tuple[Series, ...]
    references: tuple[Reference, ...] = ()
    share: bool = False  # values lie in [0, 1], and the axis shows all of it
    note: str = ""  # why there is nothing to draw


# Panels -----------------------------------------------------------------------------------------------


def label_panel(axes: Any, title: str, x: str, y: str) -> None:
    """Set title, labels and grid of a panel."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=10)
    axes.set_xlabel(x, color=TEXT)
    axes.set_ylabel(y, color=TEXT)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, color=REFERENCE)
    if x == TRAINING:
        axes.set_xlim(left=0)
    if x == STEPS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k, 1M
    if x == TURN:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def put_legend(axes: Any, place: str = "below") -> None:
    """A legend outside the axes: below them, or to their right; none for a single line without a rival."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    style = {"fontsize": 8, "frameon": False, "borderaxespad": 0.0}
    if place == "right":
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.02, 1.0), **style)
    else:
        from matplotlib.transforms import ScaledTranslation

        longest = max(map(len, labels))
        ncols = 1 if longest > 45 else 2 if longest > 22 else min(len(labels), 3 if longest > 12 else 4)
        below = axes.transAxes + ScaledTranslation(0.0, -LEGEND_GAP, axes.figure.dpi_scale_trans)
        corner = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "bbox_transform": below}
        axes.legend(handles, labels, ncols=ncols, **corner, **style)


def annotate_panel(axes: Any, text: str) -> None:
    """Write a text in the middle of a panel, such as the reason why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=TEXT)


def draw_series(axes: Any, one: Series, band: bool = True, staircase: bool = False) -> None:
    """Draw a line with the band of its interval; a staircase holds each value up to the next point."""
    dot = "o" if len(one.x) <= (1 if staircase else MARKED) else None
    axes.plot(
        one.x,
        one.estimate.value,
        color=one.colour,
        label=one.label,
        linewidth=1.0 if one.faint else 1.8,
        alpha=FAINT if one.faint else 1.0,
        linestyle=DASHES[one.dash % len(DASHES)],
        marker=dot,
        markersize=4,
        drawstyle="steps-post" if staircase else "default",
    )
    low, high = one.estimate.low, one.estimate.high
    if band and low is not None and high is not None:
        opacity = BAND / 2 if one.faint else BAND
        step = "post" if staircase else None
        axes.fill_between(one.x, low, high, color=one.colour, alpha=opacity, linewidth=0, step=step)


def draw_references(axes: Any, references: Sequence[Reference]) -> None:
    """Draw reference scores as dashed grey lines, a threshold in black."""
    players = [one for one in references if not one.threshold]
    for number, one in enumerate(players):
        style = REFERENCE_DASHES[number % len(REFERENCE_DASHES)]
        axes.axhline(one.value, color=REFERENCE, linestyle=style, linewidth=1.1, label=one.label)
    for one in references:
        if one.threshold:
            axes.axhline(one.value, color=THRESHOLD, linestyle="--", linewidth=1.1, label=one.label)


def shared_label(chart: Chart) -> str:
    """The one legend entry of several faint lines: what their labels say after the group; "" if it differs."""
    faint = [one.label.partition(", ")[2] for one in chart.series if one.faint]
    return f"faint: {faint[0]}" if len(faint) > 1 and len(set(faint)) == 1 and faint[0] else ""


def draw_chart(axes: Any, chart: Chart) -> None:
    """Draw a chart into a panel, without its legend."""
    solid = [one for one in chart.series if not one.faint]
    shared = shared_label(chart)
    for one in chart.series:
        label = "_" if shared and one.faint else one.label  # Matplotlib lists no label that begins with _
        draw_series(axes, dataclasses.replace(one, label=label), band=len(solid) <= MANY)
    if shared:
        axes.plot([], [], color=REFERENCE, linewidth=1.0, alpha=FAINT, label=shared)
    draw_references(axes, chart.references)
    if chart.note:
        annotate_panel(axes, chart.note)
    if chart.share:
        axes.set_ylim(-0.03, 1.03)
    label_panel(axes, chart.title, chart.x, chart.y)


def draw_reaching(
    axes: Any, rows: Mapping[str, Sequence[tuple[float, bool]]], colours: Mapping[str, str] | None = None
) -> None:
    """Draw how many steps runs took to a score: for each name a row of dots, and their median as a line.

    A run is (steps, reached); one that has not reached it is an open dot at its last step. `colours` keeps one colour
    for each name over several panels.
    """
    for place, (name, runs) in enumerate(rows.items()):
        shade = colour(place) if colours is None else colours[name]
        for (steps, reached), apart in zip(runs, np.linspace(-0.18, 0.18, len(runs)), strict=True):  # equal ones, too
            inside = shade if reached else "white"
            axes.plot(steps, place + apart, "o", color=shade, markerfacecolor=inside, markersize=5, alpha=0.75)
        axes.plot(np.median([steps for steps, _ in runs]), place, "|", color=shade, markersize=20, markeredgewidth=2.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)


# Files ------------------------------------------------------------------------------------------------


def chart_as_png(chart: Chart) -> bytes:
    """One chart as a picture of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw_chart(axes, chart)
    put_legend(axes)
    return as_png(figure)


def charts_as_png(charts: Sequence[Chart], caption: str = "") -> bytes:
    """All charts in one figure, two to a row."""
    from matplotlib.figure import Figure

    rows = -(-len(charts) // 2)
    figure = Figure(figsize=(12, 3.7 * rows), layout="constrained")
    for place, chart in enumerate(charts):
        axes = figure.add_subplot(rows, 2, place + 1)
        draw_chart(axes, chart)
        put_legend(axes)
    if caption:
        figure.supxlabel(caption, fontsize=8, color=TEXT)
    return as_png(figure)


def as_png(figure: Any) -> bytes:
    """A figure as the contents of a PNG file."""
    buffer = io.BytesIO()
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=MARGIN, h_pad=MARGIN)
    figure.draw_without_rendering()  # the layout needs a second pass: ticks change when it makes room for labels
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def write_png(path: Path, png: bytes) -> None:
    """Write a PNG file; missing directories are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)


def write_beside(page: Path, name: str, png: bytes) -> None:
    """Write a picture of a page as a file, too: PAGE-figures/NAME.png next to it."""
    if png:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        write_png(page.with_name(f"{page.stem}-figures") / f"{plain}.png", png)


def ink_on(shade: float) -> str:
    """Black or white, whichever is read on a shade of HEAT in [0, 1]."""
    return "white" if shade < 0.55 else "black"


def thinned(points: Array, most: int) -> Array:
    """Indices of at most `most` points, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return np.arange(len(points))
    return np.unique(np.linspace(0, len(points) - 1, most).round().astype(int))


# JSON -------------------------------------------------------------------------------------------------


def chart_to_dict(chart: Chart, points: int = 100) -> dict[str, Any]:
    """The numbers of a chart for a file of results, with which it can be drawn again; long lines are thinned."""
    found = dataclasses.asdict(chart)
    for one, line in zip(chart.series, found["series"], strict=True):
        kept = thinned(one.x, points)
        sides = {"value": one.estimate.value, "low": one.estimate.low, "high": one.estimate.high}
        line["x"] = _rounded(one.x[kept])
        line["estimate"] = {name: None if side is None else _rounded(side[kept]) for name, side in sides.items()}
    return found


def chart_from_dict(found: Mapping[str, Any]) -> Chart:
    """A chart that `chart_to_dict` has written."""
    series = []
    for line in found["series"]:
        sides = [None if side is None else np.array(side, float) for side in line["estimate"].values()]
        assert sides[0] is not None
        series.append(Series(**{**line, "x": np.array(line["x"], float), "estimate": Estimate(sides[0], *sides[1:])}))
    references = tuple(Reference(**one) for one in found["references"])
    return Chart(**{**found, "series": tuple(series), "references": references})


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]
