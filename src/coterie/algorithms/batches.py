"""Decisions to learn from, arranged for stacks of parameters, and how they are cut into minibatches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from coterie import nets
from coterie.types import Array


class Batch(NamedTuple):
    """Decisions to learn from, `[S, M, …]`; rows of weight 0 are padding.

    With memory, M counts sequences and every field has a further axis T after it.
    """

    x: Array  # what the actor sees
    seen: Array  # what the critic sees
    action: Array
    mask: Array | None
    log_prob: Array
    advantage: Array
    target: Array
    value: Array
    weight: Array  # 1 for decisions whose outcome is known
    past: nets.Past | None = None  # with memory: where each sequence begins and what it may forget


def minibatches(batch: Batch, order: Array, bounds: Array) -> Iterator[Batch]:
    """Cut each stack's shuffled rows into parts."""
    for start, stop in itertools.pairwise(bounds):
        yield take(batch, order[:, start:stop])


def take(batch: Batch, index: Array) -> Batch:
    """Pick rows `[S, K]` of every field."""
    stacks = np.arange(len(index))[:, None]

    def pick(array: Array) -> Array:
        return array[0][index[0]][None] if len(index) == 1 else array[stacks, index]

    past = None if batch.past is None else nets.Past(*(pick(a) for a in batch.past))
    arrays = {n: None if a is None else pick(a) for n, a in batch._asdict().items() if n != "past"}
    return Batch(**arrays, past=past)  # type: ignore[arg-type]  # only mask may be None


class Rows(NamedTuple):
    """A batch as tensors `[S, M, …]`, sequences laid end to end."""

    seen: torch.Tensor
    action: torch.Tensor
    mask: torch.Tensor | None
    log_prob: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor
    value: torch.Tensor
    weight: torch.Tensor


def rows_of(part: Batch) -> Rows:
    """What autograd needs of a minibatch, beside the actor's input."""

    def flat(array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if part.past is None else tensor.flatten(1, 2)

    mask = None if part.mask is None else flat(part.mask)
    rest = (part.log_prob, part.advantage, part.target, part.value, part.weight)
    return Rows(flat(part.seen), flat(part.action), mask, *(flat(array) for array in rest))
