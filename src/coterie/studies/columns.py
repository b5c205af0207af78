"""Text tables for a terminal of 80 columns."""

from __future__ import annotations

import textwrap

from coterie.policies.ansi import printable

WIDTH = 80
NAME_WIDTH = 30  # of the first column; a longer name gets its own line
SHORTEST = 12  # characters of a name that is shortened
Row = list[str]


def columns(head: Row, rows: list[Row], left: int = 1) -> list[str]:
    """Rows below their head, the first `left` columns flush left; a first cell that is too long gets its own line.

    Names in the other columns that are flush left lose their middle where a line, indented by two, would be too long.
    Columns without a word in any row are left out.
    """
    used = [i for i in range(len(head)) if i < left or not rows or any(row[i] for row in rows)]
    head, rows = [head[i] for i in used], [[printable(row[i]) for i in used] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for i in range(1, min(left, len(head))):
        room = WIDTH - 2 - sum(width + 2 for k, width in enumerate(widths) if k != i)
        widths[i] = min(widths[i], max(SHORTEST, room))
    rows = [[shortened(word, widths[i]) if 0 < i < left else word for i, word in enumerate(row)] for row in rows]
    rest = sum(width + 2 for width in widths[1:])
    widths[0] = min(widths[0], max(NAME_WIDTH, WIDTH - rest))

    def line(row: Row) -> str:
        cells = [
            f"{word:{width}}" if i < left else f"{word:>{width}}" for i, (word, width) in enumerate(zip(row, widths))
        ]
        return "  ".join(cells).rstrip()

    lines = [line(head)]
    for row in rows:
        if len(row[0]) > widths[0]:
            lines += [*fold(row[0]), line(["", *row[1:]])]
        else:
            lines.append(line(row))
    return lines


def shortened(name: str, width: int) -> str:
    """A name without its middle where it is too long: names often differ at an end."""
    return name if len(name) <= width else f"{name[: width // 2]}…{name[len(name) - (width - 1) // 2 :]}"


def fold(text: str) -> list[str]:
    """Wrap a long line at 80 columns."""
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="   ", break_on_hyphens=False, drop_whitespace=True)
    return lines or [text]
