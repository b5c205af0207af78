"""Shapes and text in pictures that worlds draw themselves; text is in Pillow's own font and needs none of the system.

A shape is given by the distance of every pixel to it, negative inside. Blending by it gives smooth edges without a
drawing library.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.types import Array

# Okabe and Ito's colour-blind-safe palette, without the yellow, in which targets are drawn. It begins as the colours of
# groups in charts do (`studies/figures.py`), so that a group of one agent has one colour in a report.
AGENT_COLOURS = np.array(
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [140, 100, 60]], np.float32
)


def blend(picture: Array, distance: Array, colour: Array, opacity: float = 1.0) -> None:
    """Paint a shape into a picture `[height, width, 3]` of floats, given every pixel's distance to it in pixels."""
    cover = (np.clip(0.5 - distance, 0, 1) * opacity)[..., None]
    picture += cover * (colour - picture)


def rgb(colour: Array) -> tuple[int, int, int]:
    """A colour as whole numbers."""
    red, green, blue = (int(part) for part in colour)
    return red, green, blue


@functools.cache
def text_mask(text: str, size: int) -> Array:
    """The share of each pixel that a text covers, `[height, width]` float32 in [0, 1], without margins."""
    from PIL import Image, ImageDraw

    font = _font(size)
    left, top, right, bottom = font.getbbox(text)
    picture = Image.new("L", (max(round(right - left), 1), max(round(bottom - top), 1)))
    ImageDraw.Draw(picture).text((-left, -top), text, 255, font)
    mask = np.asarray(picture, np.float32) / 255
    mask.flags.writeable = False  # shared by all callers
    return mask


def write_centred(picture: Array, text: str, size: int, centre: tuple[float, float], colour: Array) -> None:
    """Write a text into a picture `[height, width, 3]` of floats, centred at (row, column); its edges cut it off."""
    mask = text_mask(text, size)[: picture.shape[0], : picture.shape[1]]
    height, width = mask.shape
    top = min(max(round(centre[0] - height / 2), 0), picture.shape[0] - height)
    left = min(max(round(centre[1] - width / 2), 0), picture.shape[1] - width)
    part = picture[top : top + height, left : left + width]
    part += mask[..., None] * (colour - part)


def write_lines(picture: Array, lines: Sequence[str], size: int, colour: Array, margin: int) -> None:
    """Write lines below each other from the top left corner of a picture `[height, width, 3]` of floats."""
    from PIL import Image, ImageDraw

    sheet = Image.new("L", (picture.shape[1], picture.shape[0]))
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(lines):
        draw.text((margin, margin + number * line_height(size)), line, 255, _font(size))
    picture += np.asarray(sheet, np.float32)[..., None] / 255 * (colour - picture)


def line_height(size: int) -> int:
    """Pixels from one line to the next."""
    return round(1.35 * size)


def wrap(text: str, size: int, width: int) -> list[str]:
    """Lines of at most `width` pixels, broken between words."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _font(size).getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


@functools.cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)
