"""Decisions to learn from, arranged for stacks of parameters, and how they are cut into minibatches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.types import Array, Experience
from coterie.nn import networks
from coterie.policies.lora import LoraPolicy
from coterie.policies.network import Body


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
    past: networks.Past | None = None  # with memory: where each sequence begins and what it may forget
    notes: Array | None = None  # what an annotator said; NaN: nothing


def minibatches(batch: Batch, order: Array, bounds: Array) -> Iterator[Batch]:
    """Cut each stack's shuffled rows into parts."""
    for start, stop in itertools.pairwise(bounds):
        yield take(batch, order[:, start:stop])


def take(batch: Batch, index: Array) -> Batch:
    """Pick rows `[S, K]` of every field."""
    parameter_sets = np.arange(len(index))[:, None]

    def pick(array: Array) -> Array:
        return array[0][index[0]][None] if len(index) == 1 else array[parameter_sets, index]

    past = None if batch.past is None else networks.Past(*(pick(a) for a in batch.past))
    arrays = {n: None if a is None else pick(a) for n, a in batch._asdict().items() if n != "past"}
    return Batch(**arrays, past=past)  # type: ignore[arg-type]  # only mask and notes may be None


class Targets(NamedTuple):
    """What decisions turned out to be worth, `[T, N, A]`, in the world's returns."""

    advantage: Array
    returns: Array
    values: Array  # what the critic expected
    valid: Array  # bool: which of them are learned from


def gather(policy: Body | LoraPolicy, own: Experience, targets: Targets, x: Array, seen: Array) -> Batch:
    """Arrange decisions of every stack side by side; `x` and `seen` are rows of all moments, the last one included."""
    parameter_sets = policy.group_spec.parameter_sets
    rows = targets.valid.size // parameter_sets
    trailing = {"action": own.action, "mask": own.mask, "log_prob": own.log_prob, "notes": own.notes}
    trailing |= {"advantage": targets.advantage, "target": targets.returns, "value": targets.values}
    arrays = {name: None if array is None else _rows(policy, array) for name, array in trailing.items()}
    weight = _rows(policy, targets.valid.astype(np.float32))
    batch = Batch(x=x[:, :rows], seen=seen[:, :rows], weight=weight, **arrays)  # type: ignore[arg-type]  # only mask and notes may be None
    if policy.memory_size:
        return _sequences(policy, batch, own)
    if targets.valid.all():
        return batch
    mine = lanes(targets.valid, parameter_sets)
    index = np.zeros((len(mine), max(len(lane) for lane in mine)), np.int64)
    padding = np.zeros(index.shape, np.float32)
    for i, lane in enumerate(mine):
        index[i] = lane[0] if len(lane) else 0
        index[i, : len(lane)], padding[i, : len(lane)] = lane, 1
    return take(batch, index)._replace(weight=padding)


def lanes(valid: Array, parameter_sets: int) -> list[Array]:
    """Which of its rows each stack learns from: indices `[M]`, of another length for each."""
    return [
        np.flatnonzero(lane)
        for lane in (valid.reshape(1, -1) if parameter_sets == 1 else valid.reshape(-1, parameter_sets).T)
    ]


def _rows(policy: Body | LoraPolicy, array: Array) -> Array:
    """`[T, N, A, …]` as `[S, M, …]`."""
    flat = policy.arrange(array.reshape(*array.shape[:3], -1))
    return flat.reshape(*flat.shape[:2], *array.shape[3:])


def _sequences(policy: Body | LoraPolicy, batch: Batch, own: Experience) -> Batch:
    """The same as sequences in time, one for each copy and agent: `[S, N·A, T, …]`."""
    steps = len(own.active)
    assert own.memory is not None

    def in_time(array: Array) -> Array:
        stacked = array.reshape(array.shape[0], steps, -1, *array.shape[2:])
        return np.ascontiguousarray(stacked.swapaxes(1, 2))

    fresh = np.zeros(own.active.shape, bool)
    fresh[1:] = own.ends[:-1]  # nothing is remembered across an end
    past = networks.Past(
        in_time(_rows(policy, own.memory[:steps]))[:, :, 0],
        in_time(_rows(policy, fresh)),
        in_time(_rows(policy, own.active)),
    )
    arrays = {n: None if a is None else in_time(a) for n, a in batch._asdict().items() if n != "past"}
    return Batch(**arrays, past=past)  # type: ignore[arg-type]  # only mask and notes may be None


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
    notes: torch.Tensor | None = None


def rows_of(part: Batch) -> Rows:
    """What autograd needs of a minibatch, beside the actor's input."""

    def flat(array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if part.past is None else tensor.flatten(1, 2)

    mask, notes = (None if array is None else flat(array) for array in (part.mask, part.notes))
    log_prob, advantage, target, value, weight = map(
        flat, (part.log_prob, part.advantage, part.target, part.value, part.weight)
    )
    return Rows(flat(part.seen), flat(part.action), mask, log_prob, advantage, target, value, weight, notes)
