"""HTML pages in a single file, and helpers for the figures in them, shared by reports and comparisons."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie.core.types import Array
from coterie.studies.statistics import Estimate
from coterie.training.run import write_text

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 } td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd;
text-align: right } td:first-child, th:first-child { text-align: left } img { max-width: 100% }
pre { background: #f6f6f6; padding: .8rem; overflow: auto } .quiet { color: #666 }
"""
STEPS, SECONDS = "environment steps", "wall-clock seconds"  # labels of x axes
COLOURS = (
    *("#2a6f97", "#c1440e", "#3a7d44", "#7b4b94", "#8a6d3b", "#444444"),
    *("#e0a100", "#1fa3a3", "#d16ba5", "#7a9a01"),
)
DASHES = (":", "-.", (0, (3, 1, 1, 1, 1, 1)))  # line styles of reference scores


def write_page(path: Path, title: str, parts: Iterable[str]) -> Path:
    """Write an HTML page that loads nothing from elsewhere."""
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    text = head + "".join(parts) + "</html>\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are escaped."""
    cells = "".join(f"<th>{html.escape(word)}" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(word)}" for word in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def image(data: bytes, media_type: str, description: str) -> str:
    """An image embedded in the page."""
    return f'<img alt="{html.escape(description)}" src="data:{media_type};base64,{base64.b64encode(data).decode()}">'


def as_png(figure: Any) -> bytes:
    """A figure as the contents of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def write_png(path: Path, png: bytes) -> None:
    """Write a PNG file; missing directories are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)


def label_panel(axes: Any, title: str, x: str, y: str) -> None:
    """Set title, labels, grid and legend of a panel in the common style."""
    from matplotlib.ticker import EngFormatter

    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if x == STEPS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k, 1M
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, framealpha=0.8, edgecolor="none")


def annotate_panel(axes: Any, text: str) -> None:
    """Write a text in the middle of a panel, such as the reason why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#666666")


def draw_estimate(
    axes: Any, points: Array, estimate: Estimate, label: str, colour: str, staircase: bool = False
) -> None:
    """Draw a line with the band of its interval, if it has one; a staircase holds each value up to the next point."""
    dot = "o" if len(points) == 1 else None  # a line of one point is invisible
    style = "steps-post" if staircase else "default"
    axes.plot(
        points, estimate.value, color=colour, label=label, linewidth=1.5, marker=dot, markersize=4, drawstyle=style
    )
    if estimate.low is not None and estimate.high is not None:
        step = "post" if staircase else None
        axes.fill_between(points, estimate.low, estimate.high, color=colour, alpha=0.18, linewidth=0, step=step)
