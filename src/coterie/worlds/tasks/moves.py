"""Moves on a grid as letters: what answers of Plan-Path and Sokoban are made of, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from coterie.worlds.tasks.programs import find_program, output_of

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
REMEMBERED = 10_000  # answers, which repeat
WORDS = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}


def spell(lines: str, spaced: bool) -> str:
    """Signs as they are, or with a space between two of them: most tokenizers then give each sign its own token."""
    return "\n".join(" ".join(line) for line in lines.split("\n")) if spaced else lines


@lru_cache(REMEMBERED)
def parse_moves(answer: str) -> str | None:
    """The letters of an answer such as "RRD" or "right, down"; None where it has another form."""
    text = answer.strip().upper()
    text = re.sub(r"^(PATH|MOVES)\s*:", "", text).strip()
    line = text.split("\n")[0]
    for word, letter in WORDS.items():
        line = re.sub(rf"\b{word}\b", letter, line)
    letters = re.sub(r"[\s,.\-\[\]>]+", "", line)
    return letters if letters and set(letters) <= set(MOVES) else None


def read_moves(answer: str, grid: Callable[[], str], program: bool, started: bool) -> str | None:
    """The moves of an answer; where it may be a program, one is run to get them, with the grid as its input.

    `started`: the prompt has begun the program.
    """
    source = find_program(answer, started) if program else None
    return parse_moves(answer if source is None else output_of(source, grid() + "\n"))
