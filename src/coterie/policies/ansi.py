"""Colours of a terminal: whether a stream shows them, and texts without them."""

from __future__ import annotations

import os
import re
from typing import TextIO

_PIXELS = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+)m\x1b\[48;2;(\d+);(\d+);(\d+)m▀")  # the upper and the lower one
_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
_SHADES = " .:-=+*#%@"  # dark to light


def in_colour(stream: TextIO) -> bool:
    """Whether a stream shows colours: a terminal does, unless NO_COLOR is set; others do where FORCE_COLOR is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def without_colours(text: str) -> str:
    """A text without control sequences of colour; pixels become characters that are as light as they are."""
    return _SEQUENCE.sub("", _PIXELS.sub(_shade, text))


def _shade(pixels: re.Match[str]) -> str:
    """The character for two pixels, by their mean luma."""
    red, green, blue = ((int(pixels[i]) + int(pixels[i + 3])) / 510 for i in (1, 2, 3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return _SHADES[round(luma * (len(_SHADES) - 1))]
