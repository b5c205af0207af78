"""Decisions to learn from, arranged by parameter sets, and how they are cut into minibatches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.decisions import Decisions
from coterie.core.types import Advice, Array
from coterie.nn import networks
from coterie.nn.packing import PixelRows, Rows
from coterie.policies.lora import LoraPolicy
from coterie.policies.network import OWN_LOG_PROB, NeuralPolicy

Values = Any  # an array, or after `to_device` a tensor


class Batch(NamedTuple):
    """Decisions to learn from, `[S, M, …]`; rows of weight 0 are padding.

    With memory, M counts sequences and every field has a further axis T after it. `to_device` makes tensors of what
    networks and distributions read; what only the compiled losses read stays an array.
    """

    actor_input: Values  # [S, M, in], or texts [S, M]; pictures in bytes are `PixelRows`
    critic_input: Values  # [S, M, critic in]; where actor and critic share the encoder, only what skips it
    action: Values
    mask: Values | None
    log_prob: Array  # of the policy itself, when the decision was taken
    importance: Array  # probability by the policy itself, over the one that the action was drawn with
    advantage: Array
    target: Array  # return that the critic learns
    value: Array  # what the critic expected
    weight: Array  # 1 for decisions whose outcome is known
    sequences: networks.Sequences | None = None  # with memory: where each begins, and where it forgets
    advice: Advice | None = None  # what the advisor suggested


class Targets(NamedTuple):
    """Learning targets of a rollout, `[T, N, A]`, in the world's units."""

    advantage: Array
    returns: Array
    values: Array  # what the critic expected
    valid: Array  # bool: which of them are learned from


def make_batch(
    policy: NeuralPolicy | LoraPolicy, own: Decisions, targets: Targets, actor_input: Rows, critic_input: Rows
) -> Batch:
    """Arrange the decisions of every parameter set side by side; inputs are of all time steps, the last included."""
    parameter_sets = policy.group_spec.parameter_sets
    rows = targets.valid.size // parameter_sets
    log_prob = (own.trace or {}).get(OWN_LOG_PROB, own.log_prob)
    trailing = {"action": own.action, "mask": own.mask, "log_prob": log_prob, "advice": own.advice}
    trailing |= {"importance": np.exp(log_prob - own.log_prob)}
    trailing |= {"advantage": targets.advantage, "target": targets.returns, "value": targets.values}
    arrays: dict[str, Any] = {name: _map(lambda a: _rows(policy, a), values) for name, values in trailing.items()}
    weight = _rows(policy, targets.valid.astype(np.float32))
    inputs = {"actor_input": actor_input, "critic_input": critic_input}
    arrays |= {name: _map(lambda a: a[:, :rows], values) for name, values in inputs.items()}
    batch = Batch(**arrays, weight=weight)
    if policy.memory_size:
        return _in_sequences(policy, batch, own)
    if targets.valid.all():
        return batch
    chosen = valid_rows(targets.valid, parameter_sets)
    index = np.zeros((len(chosen), max(len(rows) for rows in chosen)), np.int64)
    weight = np.zeros(index.shape, np.float32)
    for i, mine in enumerate(chosen):
        index[i] = mine[0] if len(mine) else 0
        index[i, : len(mine)], weight[i, : len(mine)] = mine, 1
    return take(batch, index)._replace(weight=weight)


def _map(function: Callable[[Values], Values], values: Values) -> Values:
    """Apply a function to a field of a batch: an array, the arrays of an advice or of pixel rows, or nothing."""
    if values is None:
        return None
    return type(values)(*map(function, values)) if isinstance(values, Advice | PixelRows) else function(values)


def valid_rows(valid: Array, parameter_sets: int) -> list[Array]:
    """Indices `[M]` of the rows that each parameter set learns from; M differs between sets."""
    columns = valid.reshape(1, -1) if parameter_sets == 1 else valid.reshape(-1, parameter_sets).T
    return [np.flatnonzero(column) for column in columns]


def _rows(policy: NeuralPolicy | LoraPolicy, array: Array) -> Array:
    """`[T, N, A, …]` as `[S, M, …]`."""
    flat = policy.arrange(array.reshape(*array.shape[:3], -1))
    return flat.reshape(*flat.shape[:2], *array.shape[3:])


def _in_sequences(policy: NeuralPolicy | LoraPolicy, batch: Batch, own: Decisions) -> Batch:
    """The same as sequences in time, one for each copy and agent: `[S, N·A, T, …]`."""
    steps = len(own.valid)
    assert own.memory is not None

    def in_time(array: Array) -> Array:
        divided = array.reshape(array.shape[0], steps, array.shape[1] // steps, *array.shape[2:])
        return np.ascontiguousarray(divided.swapaxes(1, 2))

    starts = np.zeros(own.valid.shape, bool)
    starts[1:] = own.ends[:-1]  # memory does not cross the end of an episode
    sequences = networks.Sequences(
        in_time(_rows(policy, own.memory[:steps]))[:, :, 0],
        in_time(_rows(policy, starts)),
        in_time(_rows(policy, own.valid)),
    )
    arrays: dict[str, Any] = {
        name: _map(in_time, values) for name, values in batch._asdict().items() if name != "sequences"
    }
    return Batch(**arrays, sequences=sequences)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with tensors on a device where networks and distributions read it; texts stay as they are."""

    def move(values: Values) -> Values:
        texts = isinstance(values, np.ndarray) and values.dtype.kind == "U"
        return values if texts else torch.as_tensor(values, device=device)

    read = ("actor_input", "critic_input", "action", "mask", "advice")
    moved = {name: _map(move, values) for name, values in batch._asdict().items() if name in read}
    sequences = batch.sequences and networks.Sequences(*map(move, batch.sequences))
    return batch._replace(**moved, sequences=sequences)


def rows_to_learn(batch: Batch) -> Array:
    """The number of rows (with memory: sequences) of each parameter set, `[S]`; padding lies behind them."""
    if batch.sequences is None:
        return np.count_nonzero(batch.weight, axis=1)
    return np.where(batch.weight.any(axis=(1, 2)), batch.weight.shape[1], 0)


def shuffle(rows: Array, count: int, random: np.random.Generator) -> list[list[Array]]:
    """Row indices of each parameter set in random order, cut into `count` minibatches or one per row; none of none."""
    return [np.array_split(random.permutation(n), min(count, n)) if n else [] for n in rows]


def minibatches(batch: Batch, cuts: list[list[Array]]) -> Iterator[tuple[Batch, Array]]:
    """The b-th minibatch of every parameter set as one batch, shorter ones padded, and which parameter sets have one.

    Parameter sets differ in the number and size of their minibatches, because agents leave episodes at different steps.
    """
    for b in range(max(map(len, cuts))):
        learning = np.array([i for i, mine in enumerate(cuts) if b < len(mine)])
        index = np.zeros((len(cuts), max(len(cuts[i][b]) for i in learning)), np.int64)
        padding = np.ones(index.shape, bool)
        for i in learning:
            index[i, : len(cuts[i][b])], padding[i, : len(cuts[i][b])] = cuts[i][b], False
        part = take(batch, index)
        part.weight[padding] = 0  # a copy
        yield part, learning


def take(batch: Batch, index: Array) -> Batch:
    """Pick rows `[S, K]` of every field."""
    parameter_sets = np.arange(len(index))[:, None]

    def pick(values: Values) -> Values:
        if len(index) > 1:
            return values[parameter_sets, index]
        if isinstance(values, torch.Tensor):  # copies whole rows, which is faster than indexing
            return values[0].index_select(0, torch.as_tensor(index[0], device=values.device))[None]
        return values[0][index[0]][None]

    picked: dict[str, Any] = {
        name: _map(pick, values) for name, values in batch._asdict().items() if name != "sequences"
    }
    return Batch(**picked, sequences=batch.sequences and networks.Sequences(*map(pick, batch.sequences)))


def pieces(batch: Batch, rows: int) -> Iterator[Batch]:
    """Cut a minibatch without memory into pieces of at most so many rows `[S, rows, …]`."""
    for first in range(0, batch.weight.shape[1], rows):
        cut = operator.itemgetter((slice(None), slice(first, first + rows)))
        yield Batch(**{name: _map(cut, values) for name, values in batch._asdict().items()})


def flatten_sequences(part: Batch) -> Batch:
    """Lay sequences `[S, L, T, …]` end to end, `[S, L·T, …]`; a batch without memory stays as it is."""
    if part.sequences is None:
        return part
    flat: dict[str, Any] = {
        name: _map(lambda v: v.reshape(v.shape[0], v.shape[1] * v.shape[2], *v.shape[3:]), values)
        for name, values in part._asdict().items()
        if name != "sequences"
    }
    return Batch(**flat)
