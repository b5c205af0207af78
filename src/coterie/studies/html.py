"""HTML pages in a single file: their style, tables, folded parts and embedded pictures."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from coterie.runs.run import write_text

STYLE = """
:root { color-scheme: light } * { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem; overflow-wrap: anywhere } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem } p { margin: .4rem 0 } .quiet { color: #666 }
.wide { overflow-x: auto; margin: .5rem 0 } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
td:first-child, th:first-child, .words td, .words th, .left td, .left th { text-align: left }
.words td { white-space: normal }
.long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere }
.words td { overflow-wrap: anywhere; min-width: 0 }
.words td:first-child { white-space: nowrap; color: #666; vertical-align: top; padding-left: 0 }
.whole { display: inline-block; max-width: 100%; overflow-wrap: anywhere }
.words code, td code { overflow-wrap: anywhere } img, video { max-width: 100%; height: auto }
video { box-shadow: 0 0 0 1px #ddd }
pre { background: #f6f6f6; padding: .8rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere }
.transcript { max-height: 40rem; overflow-y: auto }
.turn { border-left: 3px solid; padding: .1rem .8rem; margin: .8rem 0 }
.turn pre { margin: .2rem 0; padding: .4rem .8rem } pre.answer { background: #e8f1f8 }
details { margin: .6rem 0 } summary { cursor: pointer; font-weight: 600 }
summary.large { font-size: 1.15rem; margin-top: 2.2rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem }
.positions { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem }
.positions > div { min-width: 0 }
figure { margin: 0; min-width: 0 } figure.live > img { display: none } figcaption { color: #666; font-size: .9rem }
.wide > img { max-width: none; width: max(100%, 46rem) }
@media (max-width: 30rem) { body { font-size: 14px; margin: 1rem auto; padding: 0 .6rem }
table { font-size: 11.5px } td, th { padding: .25rem .2rem }
table:not(.words) .long { min-width: 6rem; max-width: 10rem }
th, td:first-child { white-space: normal } td:first-child { overflow-wrap: anywhere; min-width: 5rem } }
@media print { figure.live > img { display: block } figure.live > div { display: none } }
"""
STYLE += "".join(f".text-{i} :is(td, th):nth-child({i}) {{ text-align: left }}\n" for i in range(2, 8))
LONG = 40  # characters from which on a cell may wrap
NAME = 24  # characters from which on setting=value may wrap at its dots
NARROW = '<meta name=viewport content="width=device-width, initial-scale=1">'


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """An HTML document in the common style."""
    head = f"<!doctype html><html lang=en><meta charset=utf-8>{NARROW}<title>{html.escape(title)}</title>"
    return f"{head}<style>{STYLE}{style}</style>{''.join(parts)}</html>\n"


def write_page(path: Path, title: str, parts: Iterable[str]) -> Path:
    """Write an HTML page that loads nothing from elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(title, parts))
    return path


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls by itself where it is too wide; its cells are escaped. Kind `words`: cells wrap.

    Columns of words are aligned to the left, columns of numbers to the right; kind `left`: all to the left.
    """
    rows = [list(row) for row in rows]
    names = [kind] if kind else []
    names += [f"text-{i}" for i, column in enumerate(zip(*rows), 1) if _is_of_words(column)]
    cells = "".join(f"<th>{html.escape(word)}" for word in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    name = f' class="{" ".join(names)}"' if names else ""
    return f"<div class=wide><table{name}>{f'<tr>{cells}</tr>' if head else ''}{body}</table></div>"


def _is_of_words(column: Sequence[str]) -> bool:
    """Whether more of its cells begin with a letter than with a number."""
    words = sum(word[:1].isalpha() for word in column)
    return words > sum(word.lstrip("-−+[(")[:1].isdigit() for word in column)


def _cell(word: str) -> str:
    return f"<td{' class=long' if len(word) > LONG else ''}>{_breakable(word)}"


def _breakable(text: str) -> str:
    """Escaped text in which long words of the form setting=value may wrap after dots, slashes and equals signs.

    Numbers stay whole. Browsers may also break within options and values that have hyphens, such as `--jobs` and
    `1e-3`: these stay whole, too.
    """
    parts = []
    for word in re.split(r"(\s+)", text):
        long = "=" in word and len(word) > NAME
        pieces = re.split(r"(?<=[._=/])(?=\w)(?<!\d\.(?=\d))", word) if long else [word]
        parts.append(
            "<wbr>".join(_unhyphenated(one) if long or one[:2] == "--" else html.escape(one) for one in pieces)
        )
    return "".join(parts)


def _unhyphenated(word: str) -> str:
    """Escaped, and with hyphens broken only where it is longer than a line."""
    return f"<span class=whole>{html.escape(word)}</span>" if "-" in word else html.escape(word)


def folded(summary: str, parts: Iterable[str], unfolded: bool = False, large: bool = False) -> str:
    """A part of which a reader first sees the summary, which is escaped."""
    name = " class=large" if large else ""
    return (
        f"<details{' open' if unfolded else ''}><summary{name}>{html.escape(summary)}</summary>"
        f"{''.join(parts)}</details>"
    )


def image(data: bytes, media_type: str, description: str) -> str:
    """An image embedded in the page."""
    return f'<img alt="{html.escape(description)}" src="{data_url(data, media_type)}">'


def wide_image(data: bytes, media_type: str, description: str) -> str:
    """An image of many panels, which keeps a readable size on a narrow screen and scrolls there."""
    return f"<div class=wide>{image(data, media_type, description)}</div>"


def video_tag(data: bytes, description: str) -> str:
    """An MP4 embedded in the page, which plays without sound and starts anew.

    Controls come with a click: they would cover the captions.
    """
    return (
        f'<video autoplay loop muted playsinline onclick="this.controls = true" title="click: controls" '
        f'aria-label="{html.escape(description)}" src="{data_url(data, "video/mp4")}"></video>'
    )


def data_url(data: bytes, media_type: str) -> str:
    """The address that holds the data itself."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
