"""Captions around a world's pictures and texts: episode, step, returns, and who is who."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.core.group import Actor
from coterie.core.types import Array
from coterie.core.world import Sign, World
from coterie.policies import ansi

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

SMALLEST = 480  # pixels of the longer side of a picture, to which smaller ones are enlarged
NARROWEST = 440  # pixels of a video, for its captions
FONT_SIZE, LINE, MARGIN = 15, 22, 10
SPACE = 5  # pixels of a space: those of Pillow's font are so narrow that words run into each other
NAMES = 4  # agents of a group that are named at most
INK, QUIET, GROUND = (40, 42, 48), (105, 108, 115), (255, 255, 255)


class Who(NamedTuple):
    """A line that says who plays: colours of the agents, and words."""

    colours: tuple[tuple[int, int, int], ...]
    words: str


def who_is_who(world: World, actors: Sequence[Actor], kinds: Mapping[str, str]) -> list[Who]:
    """One line for each group: its agents by name, and the kind of its policy where it is known."""
    colours = {sign.meaning: sign.colour for sign in signs(world)}
    lines = []
    for actor in actors:
        agents, group = actor.group_spec.agents, actor.group_spec.group
        shown = agents if len(agents) <= NAMES else (*agents[:2], "…", agents[-1])
        kind = f" ({kinds[group]})" if group in kinds else ""
        own = tuple(dict.fromkeys(colours[agent] for agent in agents if agent in colours))
        names = ", ".join(shown).replace(", …,", " …")
        lines.append(Who(own, f"{group}: {names}{kind}" if names != group else f"{group}{kind}"))
    return lines


def signs(world: World) -> tuple[Sign, ...]:
    """The world's legend; empty where it has none."""
    legend: tuple[Sign, ...] = getattr(world, "legend", tuple)()
    return legend


def describe_step(episode: tuple[int, int | None], step: int, returns: Mapping[str, float]) -> str:
    """Episode (number, and of how many), step and returns in a line."""
    number, total = episode
    of = f" of {total}" if total is not None and total > 1 else ""
    scores = "  ".join(f"{group} {round(value, 2) + 0.0:.2f}" for group, value in returns.items())  # + 0.0: no -0.00
    return f"episode {number}{of}   step {step}   return  {scores}"


def in_lines(words: str, fits: Callable[[str], bool]) -> list[str]:
    """Lines that fit, where possible: the words are broken at two spaces or more."""
    lines = [""]
    for part in re.findall(r" *\S+(?: \S+)*", words):
        if fits(lines[-1] + part) or not lines[-1]:
            lines[-1] += part
        else:
            lines.append(part.strip())
    return lines


def without_step(scene: str, step: int) -> str:
    """A scene without the step that it begins with, for where the step is written above it."""
    return re.sub(rf"\Astep {step}(\n|, |\Z)", "", scene)


# Pictures -----------------------------------------------------------------------------------------------


class Captioned:
    """Writes captions above and below the frames of one video; all frames get the same size."""

    def __init__(self, lines: Sequence[Who], remarks: Sequence[Sign] = ()) -> None:
        grey = Sign("", "").colour
        self.lines = [*lines, *(Who(() if s.colour == grey else (s.colour,), s.meaning) for s in remarks)]
        self.width = 0
        self.lines_above = 1
        self.wrapped: list[Who] = []

    def frame(self, picture: Array, words: str) -> Array:
        """The picture, enlarged if it is small, with `words` above and the lines below: `[height, width, 3]` uint8."""
        from PIL import Image, ImageDraw

        image = enlarged(Image.fromarray(picture))
        if not self.width:
            self.width = max(image.width, NARROWEST) + max(image.width, NARROWEST) % 2  # even, for MP4
            self.wrapped = [part for line in self.lines for part in _wrap(line, self.width)]
            self.lines_above = len(in_lines(_with_wide_numbers(words), self._fits))
        head = in_lines(words, self._fits)
        kept = self.lines_above - 1
        head = [*head[:kept], "  ".join(head[kept:])]
        above = self.lines_above * LINE + MARGIN
        below = len(self.wrapped) * LINE + (MARGIN if self.wrapped else 0)
        height = above + image.height + below
        canvas = Image.new("RGB", (self.width, height + height % 2), GROUND)
        canvas.paste(image, ((self.width - image.width) // 2, above))
        draw = ImageDraw.Draw(canvas)
        for number, text in enumerate(head):
            _write(draw, MARGIN, MARGIN // 2 + 1 + number * LINE, text, INK)
        for number, (colours, text) in enumerate(self.wrapped):
            top, left = above + image.height + MARGIN // 2 + number * LINE, MARGIN
            for colour in colours:
                draw.ellipse((left, top + 5, left + 10, top + 15), fill=colour)
                left += 14
            _write(draw, left + (2 if colours else 0), top, text, QUIET)
        return np.asarray(canvas)

    def _fits(self, text: str) -> bool:
        return _length(text) <= self.width - 2 * MARGIN


def enlarged(image: Image) -> Image:
    """A small picture, enlarged by quarters of its size."""
    from PIL.Image import Resampling

    times = math.ceil(4 * SMALLEST / max(image.size)) / 4
    if times <= 1:
        return image
    return image.resize((round(image.width * times), round(image.height * times)), Resampling.BICUBIC)


def _font() -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(FONT_SIZE)


def _length(text: str) -> float:
    """The pixels of a text in one line."""
    font = _font()
    return sum(font.getlength(word) for word in text.split(" ")) + SPACE * text.count(" ")


def _write(draw: ImageDraw, left: float, top: int, text: str, colour: tuple[int, int, int]) -> None:
    """Write a text word by word, with wider spaces than the font's."""
    font = _font()
    for word in text.split(" "):
        draw.text((left, top), word, colour, font)
        left += font.getlength(word) + SPACE


def _with_wide_numbers(words: str) -> str:
    """The words of a first frame with numbers as wide as those of later ones may become."""
    return re.sub(r"-?\d+\.\d\d\b", "-000.00", re.sub(r"\bstep \d+", "step 0000", words))


def _wrap(line: Who, width: int) -> list[Who]:
    """A line cut where it would be too wide, if possible not within brackets; its colours stay with the first part."""
    room = width - 2 * MARGIN - 14 * len(line.colours) - 20
    parts, words = [""], re.findall(r"\([^()]*\)|\S+", line.words)
    if any(_length(word) > room for word in words):
        words = line.words.split(" ")
    for word in words:
        longer = f"{parts[-1]} {word}".strip()
        if _length(longer) <= room or not parts[-1]:
            parts[-1] = longer
        else:
            parts.append(word)
    return [Who(line.colours if not i else (), part) for i, part in enumerate(parts)]


# Terminals ----------------------------------------------------------------------------------------------


def in_colour() -> bool:
    """Whether standard output shows colours."""
    return ansi.in_colour(sys.stdout)


def shown(scene: str, legend: Sequence[Sign]) -> str:
    """A scene as standard output shows it: with its signs in colour, or without colours."""
    return coloured(scene, legend) if in_colour() else ansi.without_colours(scene)


def paint(text: str, colour: tuple[int, int, int]) -> str:
    """Bold text in the nearest of a terminal's 256 colours."""
    red, green, blue = (round(part / 255 * 5) for part in colour)
    return f"\x1b[1;38;5;{16 + 36 * red + 6 * green + blue}m{text}\x1b[0m"


def coloured(scene: str, legend: Sequence[Sign]) -> str:
    """A scene with its signs in colour: words wherever they stand, single characters in lines without words."""
    words = {sign.text: sign.colour for sign in legend if len(sign.text) > 1}
    marks = {sign.text: sign.colour for sign in legend if len(sign.text) == 1}
    lines = []
    for line in scene.splitlines():
        if re.search(r"[A-Za-z]{3}", line):
            for word, colour in words.items():
                line = re.sub(rf"\b{re.escape(word)}\b", paint(word, colour), line)
        else:
            line = "".join(paint(sign, marks[sign]) if sign in marks else sign for sign in line)
        lines.append(line)
    return "\n".join(lines)


def legend_lines(legend: Sequence[Sign], who: Sequence[Who], colour: bool, width: int = 80) -> list[str]:
    """Lines of at most `width` characters on the players and the meaning of the signs."""
    meanings: dict[str, list[Sign]] = {}
    for sign in legend:
        meanings.setdefault(sign.meaning, []).append(sign)
    entries, plain = [], []
    for meaning, same in meanings.items():
        texts = [sign.text for sign in same if sign.text and sign.text != meaning]
        painted = [paint(sign.text, sign.colour) if colour else sign.text for sign in same if sign.text in texts]
        if texts:
            plain.append(f"{''.join(texts)} {meaning}")
            entries.append(f"{''.join(painted)} {meaning}")
    lines, length = [""], 0
    for entry, bare in zip(entries, plain, strict=True):
        if length and length + 3 + len(bare) > width:
            lines.append("")
            length = 0
        lines[-1] += ("   " if length else "") + entry
        length += (3 if length else 0) + len(bare)
    return [*(line.words for line in who), *(line for line in lines if line)]
