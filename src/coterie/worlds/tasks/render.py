"""Pictures of text: a fixed number of lines and columns in a fixed-width font, so that all frames have one size."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from coterie.core.types import Array

LINES, COLUMNS = 20, 64
MARGIN = 12  # pixels
SIZE = 14  # of the font, in pixels
GROUND, INK = (38, 43, 56), (224, 229, 240)


def draw_text(text: str) -> Array:
    """The first lines of a text, `[height, width, 3]` uint8; long lines are broken."""
    from PIL import Image, ImageDraw

    font, width, height = _font()
    picture = Image.new("RGB", (2 * MARGIN + COLUMNS * width, 2 * MARGIN + LINES * height), GROUND)
    drawing = ImageDraw.Draw(picture)
    for row, line in enumerate(_lines(text)):
        for column, letter in enumerate(line):  # each in the middle of its cell: columns stay straight in any font
            left = MARGIN + column * width + (width - font.getlength(letter)) / 2
            drawing.text((left, MARGIN + row * height), letter, INK, font)
    return np.asarray(picture)


def _lines(text: str) -> list[str]:
    """Lines of at most `COLUMNS` characters; the last says that more was left out."""
    found: list[str] = []
    for line in text.split("\n"):
        found += [line[start : start + COLUMNS] for start in range(0, max(len(line), 1), COLUMNS)]
    return found if len(found) <= LINES else [*found[: LINES - 1], "…"]


@functools.cache
def _font() -> tuple[Any, int, int]:
    """A font, and the size of its cell."""
    from PIL import ImageFont

    font = ImageFont.load_default(SIZE)
    return font, round(font.getlength("0")) + 1, round(1.3 * SIZE)
