"""Charts that can be zoomed and hovered in a browser, without a server and without fetching anything.

They need plotly.js, which is taken from the installed `plotly` package when a page is written and packed into it;
browsers unpack it. Without that package, or in a browser that cannot unpack, pages show the PNGs that every chart has
as well. No Python code of Plotly is used.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Array
from coterie.studies import figures
from coterie.studies.figures import Chart, Series

MAX_POINTS = 1000  # of a line in a page
PLOTLY_DASHES = ("solid", "dash", "dashdot", "longdashdot")
REFERENCE_DASHES = ("dot", "dashdot", "longdashdot", "longdash")
FONT = {"family": "system-ui, sans-serif", "size": 12, "color": "#333"}
SCRIPT = """
(async () => {
  const charts = document.querySelectorAll("figure.chart[data-chart]");
  if (!charts.length || typeof DecompressionStream === "undefined") return;
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.appendChild(script);
  const draw = figure => {
    const {data, layout} = JSON.parse(figure.dataset.chart);
    const place = document.createElement("div");
    figure.prepend(place);
    const names = layout.showlegend ? data.filter(one => one.showlegend !== false).map(one => one.name.length) : [];
    const width = figure.clientWidth, longest = Math.max(0, ...names);
    const perRow = Math.max(1, Math.floor((width - 80) / (7 * longest + 50)));
    layout.height = 310 + 20 * Math.ceil(names.length / perRow);
    const options = {responsive: true, displaylogo: false, displayModeBar: width > 480 ? "hover" : false};
    options.modeBarButtonsToRemove = ["lasso2d", "select2d", "autoScale2d"];
    Plotly.newPlot(place, data, layout, options);
    figure.classList.add("live");
  };
  const watcher = new IntersectionObserver(seen => seen.forEach(one => {
    if (one.isIntersecting) { watcher.unobserve(one.target); draw(one.target); }
  }), {rootMargin: "1500px"});
  charts.forEach(figure => watcher.observe(figure));
})();
"""


def available() -> bool:
    """Whether plotly.js is installed."""
    return library_file() is not None


def scripts() -> str:
    """The scripts that a page with interactive charts holds once; empty without plotly.js."""
    file = library_file()
    if file is None:
        return ""
    return f'<script id=plotly type="application/octet-stream">{_packed(file)}</script><script>{SCRIPT}</script>'


def figure(chart: Chart, image: str) -> str:
    """A chart as HTML: its picture, and where plotly.js is installed the numbers of the interactive one."""
    if not available():
        return f"<figure class=chart>{image}</figure>"
    return f'<figure class=chart data-chart="{html.escape(json.dumps(to_dict(chart)))}">{image}</figure>'


def library_file() -> Path | None:
    """plotly.js of the installed package; None: there is none."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return file if file.is_file() else None


@functools.cache
def _packed(file: Path) -> str:
    return base64.b64encode(gzip.compress(file.read_bytes(), mtime=0)).decode()


# Charts -------------------------------------------------------------------------------------------------


def to_dict(chart: Chart) -> dict[str, Any]:
    """A chart as traces and layout of plotly.js."""
    traces = [trace for one in chart.series for trace in _traces(one, chart)]
    shared = figures.shared_label(chart)
    if shared:
        line = {"color": figures.REFERENCE, "width": 1.2}
        traces.append({"x": [None], "y": [None], "name": shared, "mode": "lines", "line": line, "opacity": 0.5})
    for number, one in enumerate(chart.references):
        span = _span(chart)
        style = "dash" if one.threshold else REFERENCE_DASHES[number % len(REFERENCE_DASHES)]
        shade = figures.THRESHOLD if one.threshold else figures.REFERENCE
        line = {"color": shade, "width": 1.2, "dash": style}
        traces.append({"x": span, "y": [_short(one.value)] * 2, "name": one.label, "mode": "lines", "line": line})
    ticks = {"ticks": "outside", "ticklen": 4, "tickcolor": "rgba(0,0,0,0)"}  # a gap between numbers and axes
    y: dict[str, Any] = {"zeroline": False, "gridcolor": "#eee", "automargin": True, **ticks}
    y["title"] = {"text": chart.y, "standoff": 12}  # clear of long tick labels
    largest = max((float(np.nanmax(abs(one.estimate.value), initial=0)) for one in chart.series), default=0.0)
    if 0 < largest < 0.01:
        y["exponentformat"] = "power"  # instead of 250µ
    if chart.share:
        y["range"] = [-0.03, 1.03]
    several = len(chart.series) + len(chart.references) > 1
    x: dict[str, Any] = {"gridcolor": "#eee", "zeroline": False, "automargin": True, **ticks}
    x["title"] = {"text": chart.x, "standoff": 10}
    if chart.x == figures.TRAINING:
        x["rangemode"] = "tozero"
    if chart.x == figures.STEPS:
        x["tickformat"] = "~s"  # 2k, 1M, as in the pictures
        x["hoverformat"] = ",d"
    if chart.x == figures.TURN:
        x["dtick"] = math.ceil(max((one.x.max() for one in chart.series), default=1) / 10)
    layout = {
        "title": {"text": f"<b>{html.escape(chart.title)}</b>", "font": {"size": 14}, "x": 0, "xanchor": "left"},
        "xaxis": x,
        "yaxis": y,
        "font": FONT,
        "margin": {"l": 50, "r": 12, "t": 44, "b": 50},
        "legend": {"orientation": "h", "y": -0.26, "yanchor": "top", "x": 0, "font": {"size": 11}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#aaa", "activecolor": "#333"},
        "hovermode": "x unified",
        "hoverlabel": {"namelength": -1},  # names of lines are not cut
        "showlegend": several,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    if chart.note:
        layout["annotations"] = [{"text": chart.note, "showarrow": False, "xref": "paper", "yref": "paper"}]
    return {"data": traces, "layout": layout}


def _traces(one: Series, chart: Chart) -> Iterator[dict[str, Any]]:
    """A line, after its band where it has one that stays readable."""
    gaps = np.flatnonzero(np.isnan(one.estimate.value))
    kept = np.union1d(figures.thinned(one.x, MAX_POINTS), gaps)
    x, low, high = _numbers(one.x[kept]), one.estimate.low, one.estimate.high
    solid = sum(not each.faint for each in chart.series)
    shared = bool(figures.shared_label(chart))  # then a click on a group's entry hides its faint line, too
    shape: dict[str, Any] = {"legendgroup": one.colour if shared else one.label, "mode": "lines", "x": x}
    if low is not None and high is not None and solid <= figures.MANY:
        silent = shape | {"line": {"width": 0, "color": one.colour}, "showlegend": False, "hoverinfo": "skip"}
        yield silent | {"y": _numbers(low[kept])}
        opacity = figures.BAND / 2 if one.faint else figures.BAND
        yield silent | {"y": _numbers(high[kept]), "fill": "tonexty", "fillcolor": _with_opacity(one.colour, opacity)}
    dashes = PLOTLY_DASHES[one.dash % len(PLOTLY_DASHES)]
    line = {"color": one.colour, "width": 1.2 if one.faint else 2.2, "dash": dashes}
    opacity = figures.FAINT + 0.1 if one.faint else 1
    values = _numbers(one.estimate.value[kept])
    found = shape | {"y": values, "name": one.label, "line": line, "opacity": opacity}
    if len(kept) <= figures.MARKED:
        found |= {"mode": "lines+markers", "marker": {"size": 6}}
    yield found | ({"showlegend": False} if shared and one.faint else {})


def _span(chart: Chart) -> list[float]:
    ends = [float(end) for one in chart.series for end in (one.x[0], one.x[-1])] or [0.0, 1.0]
    return [_short(min(ends)), _short(max(ends))]


def _numbers(values: Array) -> list[float | None]:
    """Numbers as JSON has them: a gap is null."""
    return [None if math.isnan(value) else _short(value) for value in values.tolist()]


def _short(value: float) -> float:
    """Six significant digits, which are more than a screen shows."""
    return float(f"{value:.6g}")


def _with_opacity(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
