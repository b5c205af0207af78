"""Prompts and their choices packed into one row of tokens that share what they share.

Scoring C choices for P prompts needs each prompt once, not once per choice, and what all prompts begin
with once, not P times. So a pass reads one row: first the beginning that all share (unless the model has
read it before), then for each prompt its own rest, then each choice. A mask keeps strangers apart: a token
sees the beginning, its own prompt and its own choice, at the positions they would have alone. NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Tokens = Sequence[int]
LONG = 128  # tokens of a prompt that is worth a pass of its own
BRANCH = 32  # tokens by which groups are told apart


@dataclass(frozen=True)
class Pack:
    """One row; Q tokens to read after L that were read before; K places whose next token is asked for."""

    tokens: np.ndarray  # [Q]
    positions: np.ndarray  # [Q], as if each prompt with one choice stood alone
    mask: np.ndarray  # [Q, L + Q] bool, who sees whom
    keep: np.ndarray  # [K] index into the row
    place: np.ndarray  # [N] index into keep, for each token of each choice
    target: np.ndarray  # [N] the token itself
    owner: np.ndarray  # [N, 2] prompt and choice it belongs to


def shared_length(rows: Sequence[Tokens]) -> int:
    """How many tokens all rows begin with."""
    if not rows:
        return 0
    low, high = min(rows, key=list), max(rows, key=list)  # the first and the last in order share least
    return agreeing(low, high)


def agreeing(one: Tokens, other: Tokens) -> int:
    """How many tokens two rows begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(differ[0]) if differ.size else size


def groups(prompts: Sequence[Tokens]) -> list[list[int]]:
    """Prompts by what they begin with: members of a group share at least half of their shortest one.

    Short prompts that resemble no other form one group, since a pass for each of them would cost more; a
    long one stands alone, so that its beginning can be kept.
    """
    found: list[list[int]] = []
    alone: list[int] = []
    todo = [list(range(len(prompts)))] if prompts else []
    while todo:
        group = todo.pop()
        rows = [prompts[number] for number in group]
        shared = shared_length(rows)
        if len(group) == 1 and len(rows[0]) < LONG:
            alone += group
        elif shared * 2 >= min(map(len, rows)):
            found.append(group)
        else:
            parts: dict[tuple[int, ...], list[int]] = {}
            for number in group:  # they differ at the next token
                parts.setdefault(tuple(prompts[number][shared : shared + BRANCH]), []).append(number)
            todo += parts.values()
    return [*found, sorted(alone)] if alone else found


def chunks(
    prompts: Sequence[Tokens], choices: Sequence[Sequence[Tokens]], start: int, limit: int
) -> list[tuple[int, int]]:
    """Ranges of prompts whose packs stay within `limit` tokens each (one prompt may exceed it)."""
    ranges: list[tuple[int, int]] = []
    begin = size = 0
    for number, (prompt, mine) in enumerate(zip(prompts, choices)):
        extra = len(prompt) - start + sum(len(choice) - 1 for choice in mine)
        if number > begin and size + extra > limit:
            ranges.append((begin, number))
            begin, size = number, 0
        size += extra
    return [*ranges, (begin, len(prompts))] if prompts else []


def pack(prompts: Sequence[Tokens], choices: Sequence[Sequence[Tokens]], start: int, read: bool) -> Pack:
    """Lay prompts and choices out; they share their first `start` tokens, which were read before or come first."""
    tokens: list[int] = []
    positions: list[int] = []
    segment: list[int] = []  # of each token
    parents: list[int] = []  # of each segment, -1: none
    keep: list[int] = []
    place: list[int] = []
    target: list[int] = []
    owner: list[tuple[int, int]] = []

    def add(part: Tokens, at: int, parent: int) -> int:
        parents.append(parent)
        tokens.extend(part)
        positions.extend(range(at, at + len(part)))
        segment.extend([len(parents) - 1] * len(part))
        return len(parents) - 1

    root = -1 if read or not start else add(prompts[0][:start], 0, -1)
    for number, (prompt, mine) in enumerate(zip(prompts, choices)):
        trunk = add(prompt[start:], start, root)
        keep.append(len(tokens) - 1)
        last = len(keep) - 1
        for which, choice in enumerate(mine):
            begin = len(tokens)
            add(choice[:-1], len(prompt), trunk)
            place += [last, *range(len(keep), len(keep) + len(choice) - 1)]
            keep += range(begin, len(tokens))
            target += choice
            owner += [(number, which)] * len(choice)
    mask = _sees(np.array(segment), np.array(parents))
    if read:
        mask = np.concatenate([np.ones((len(tokens), start), bool), mask], axis=1)
    return Pack(
        *(np.array(tokens), np.array(positions), mask, np.array(keep), np.array(place), np.array(target)),
        np.array(owner).reshape(-1, 2),
    )


def _sees(segment: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """[Q, Q]: earlier tokens of one's own segment and of those above it."""
    above = np.eye(len(parents), dtype=bool)
    for one, parent in enumerate(parents):  # parents come first
        if parent >= 0:
            above[one] |= above[parent]
    return np.tril(above[segment][:, segment])
