"""Pictures of text: a fixed number of lines and columns in a fixed-width font, so that all frames have one size.

The font is Matplotlib's DejaVu Sans Mono, which needs none of the system.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Array

LINES, COLUMNS = 16, 64
MARGIN = 12  # pixels
SIZE = 15  # of the font, in pixels
GROUND, INK = (250, 248, 243), (60, 62, 70)


def draw_text(text: str) -> Array:
    """The first lines of a text, `[height, width, 3]` uint8; long lines are broken."""
    from PIL import Image, ImageDraw

    font, width, height = _font()
    picture = Image.new("RGB", (2 * MARGIN + COLUMNS * width, 2 * MARGIN + LINES * height), GROUND)
    drawing = ImageDraw.Draw(picture)
    for row, line in enumerate(_lines(text)):
        drawing.text((MARGIN, MARGIN + row * height), line, INK, font)
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
    import matplotlib
    from PIL import ImageFont

    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf"), SIZE)
    return font, math.ceil(font.getlength("0")), round(1.3 * SIZE)
