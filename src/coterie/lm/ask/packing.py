"""Packs prompts and their choices into one row of tokens, so that shared parts are read once.

Scoring C choices for P prompts needs each prompt once, not once per choice, and the prefix that all prompts share once,
not P times. So a forward pass reads one row: first the shared prefix (unless its keys and values are cached), then for
each prompt its remaining tokens followed by its choices. An attention mask separates them: a token sees the prefix, its
own prompt and its own choice, at the positions they would have alone. NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Tokens = Sequence[int]
LONG_PROMPT = 128  # tokens from which a prompt gets its own pass
BRANCH_TOKENS = 32  # tokens after the shared prefix that divide prompts into groups


@dataclass(frozen=True)
class PackedRow:
    """One row: Q tokens to read after L cached ones; K positions whose logits are needed; N tokens of choices."""

    tokens: np.ndarray  # [Q]
    positions: np.ndarray  # [Q], as if each prompt with one choice stood alone
    mask: np.ndarray  # [Q, L + Q] bool, which tokens each token attends to
    keep: np.ndarray  # [K] positions in the row whose logits are needed
    place: np.ndarray  # [N] index into keep, for each token of each choice
    target: np.ndarray  # [N] the token itself
    owner: np.ndarray  # [N, 2] its prompt and its choice


def shared_prefix_length(rows: Sequence[Tokens]) -> int:
    """Return the number of tokens that all rows begin with."""
    if not rows:
        return 0
    low, high = min(rows, key=list), max(rows, key=list)  # the first and the last in order share least
    return common_prefix_length(low, high)


def common_prefix_length(one: Tokens, other: Tokens) -> int:
    """Return the number of tokens that two rows begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(differ[0]) if differ.size else size


def group_by_prefix(prompts: Sequence[Tokens]) -> list[list[int]]:
    """Group prompts by their prefix: the members of a group share at least half of their shortest one.

    Short prompts without a similar one form one group, since a pass for each would cost more; a long one forms its own
    group, so that its prefix can be cached.
    """
    found: list[list[int]] = []
    single: list[int] = []
    pending = [list(range(len(prompts)))] if prompts else []
    while pending:
        group = pending.pop()
        rows = [prompts[number] for number in group]
        shared = shared_prefix_length(rows)
        if len(group) == 1 and len(rows[0]) < LONG_PROMPT:
            single += group
        elif shared * 2 >= min(map(len, rows)):
            found.append(group)
        else:
            parts: dict[tuple[int, ...], list[int]] = {}
            for number in group:  # they differ at the next token
                parts.setdefault(tuple(prompts[number][shared : shared + BRANCH_TOKENS]), []).append(number)
            pending += parts.values()
    return [*found, sorted(single)] if single else found


def split_by_size(
    prompts: Sequence[Tokens], choices: Sequence[Sequence[Tokens]], start: int, limit: int
) -> list[tuple[int, int]]:
    """Return ranges of prompts whose packed rows have at most `limit` tokens; a single prompt may exceed it."""
    ranges: list[tuple[int, int]] = []
    begin = size = 0
    for number, (prompt, options) in enumerate(zip(prompts, choices)):
        extra = len(prompt) - start + sum(len(choice) - 1 for choice in options)
        if number > begin and size + extra > limit:
            ranges.append((begin, number))
            begin, size = number, 0
        size += extra
    return [*ranges, (begin, len(prompts))] if prompts else []


def pack(prompts: Sequence[Tokens], choices: Sequence[Sequence[Tokens]], start: int, cached: bool) -> PackedRow:
    """Pack prompts that share their first `start` tokens; `cached`: those are read already and not in the row."""
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

    root = -1 if cached or not start else add(prompts[0][:start], 0, -1)
    for number, (prompt, options) in enumerate(zip(prompts, choices)):
        trunk = add(prompt[start:], start, root)
        keep.append(len(tokens) - 1)
        last = len(keep) - 1
        for which, choice in enumerate(options):
            begin = len(tokens)
            add(choice[:-1], len(prompt), trunk)
            place += [last, *range(len(keep), len(keep) + len(choice) - 1)]
            keep += range(begin, len(tokens))
            target += choice
            owner += [(number, which)] * len(choice)
    mask = _attention_mask(np.array(segment), np.array(parents))
    if cached:
        mask = np.concatenate([np.ones((len(tokens), start), bool), mask], axis=1)
    return PackedRow(
        *(np.array(tokens), np.array(positions), mask, np.array(keep), np.array(place), np.array(target)),
        np.array(owner).reshape(-1, 2),
    )


def _attention_mask(segment: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Return `[Q, Q]`: a token attends to earlier tokens of its own segment and of that segment's ancestors."""
    ancestors = np.eye(len(parents), dtype=bool)
    for one, parent in enumerate(parents):  # parents come first
        if parent >= 0:
            ancestors[one] |= ancestors[parent]
    return np.tril(ancestors[segment][:, segment])
