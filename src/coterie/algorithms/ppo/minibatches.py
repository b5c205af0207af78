"""Decisions to learn from, arranged by parameter sets, and how they are cut into minibatches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from coterie.algorithms.ppo.losses import NAMES, weigh
from coterie.core.advice import AdviceUse
from coterie.core.decisions import Decisions
from coterie.core.types import Advice, Array
from coterie.nn.advice import log_prior
from coterie.nn.distributions import Head, Taken
from coterie.nn.nets import pick
from coterie.nn.networks import Sequences
from coterie.nn.packing import PixelRows, Rows
from coterie.policies.lora import LoraPolicy
from coterie.policies.network import OWN_LOG_PROB, NeuralPolicy

Values = Any  # an array, the arrays of an advice or of pixel rows, or nothing


class Batch(NamedTuple):
    """Decisions to learn from, `[S, M, …]`; rows of weight 0 are padding.

    With memory, M counts sequences and every field has a further axis T after it.
    """

    actor_input: Values  # [S, M, in], or texts [S, M]; pictures in bytes are `PixelRows`
    critic_input: Values  # [S, M, critic in]; where actor and critic share the encoder, only what skips it
    action: Array
    mask: Array | None
    log_prob: Array  # of the policy itself, when the decision was taken
    importance: Array  # probability by the policy itself, over the one that the action was drawn with
    advantage: Array
    target: Array  # return that the critic learns
    value: Array  # what the critic expected
    weight: Array  # 1 for decisions whose outcome is known
    sequences: Sequences | None = None  # with memory: where each begins, and where it forgets
    advice: Advice | None = None  # what the advisor suggested


class FlatBatch(NamedTuple):
    """A batch as the losses read it: its decisions laid end to end, R = S·M or S·M·T."""

    taken: Taken
    log_prob: Array  # [R]
    importance: Array  # [R]
    advantage: Array  # [R]
    target: Array  # [R]
    value: Array  # [R]
    weight: Array  # [R]
    value_limit: Array  # [R]: how far a value may move, in the critic's units; 0: any distance
    prior: Array | None  # [R, outputs]: what advice adds to logits
    advice: tuple[Array, Array] | None  # of a loss: probabilities [R, outputs], strength [R]


class Minibatch(NamedTuple):
    """The rows that every parameter set learns from in one step; shorter ones are padded."""

    items: Array  # [S, K] int64: rows of the networks' inputs, sequences with memory
    rows: Array  # [S, M] int64: decisions of the parameter set; M = K, or K·T with memory
    places: Array  # [S·M] int64: the same in the `FlatBatch`
    weight: Array  # [S·M]: sums to 1 over a parameter set's; 0: padding
    advantage: Array  # [S·M]
    terms: Array  # [S·M, …]: the losses' parts of each decision, which the update writes
    learning: Array | None  # the parameter sets that have one; None: all


class Cut(NamedTuple):
    """The rows of one parameter set in the order in which it learns from them."""

    order: Array  # [n] int64
    ends: list[int]  # where each of its minibatches ends


class Pass(NamedTuple):
    """One pass over the batch."""

    minibatches: list[Minibatch]
    ends: Array  # [B]: where each ends among all their decisions
    counts: Array  # [B, S]: decisions of each parameter set that are no padding
    terms: Array  # of all minibatches, one after the other


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
    sequences = Sequences(
        in_time(_rows(policy, own.memory[:steps]))[:, :, 0],
        in_time(_rows(policy, starts)),
        in_time(_rows(policy, own.valid)),
    )
    arrays: dict[str, Any] = {
        name: _map(in_time, values) for name, values in batch._asdict().items() if name != "sequences"
    }
    return Batch(**arrays, sequences=sequences)


def take(batch: Batch, index: Array) -> Batch:
    """Pick rows `[S, K]` of every field."""
    picked: dict[str, Any] = {
        name: _map(lambda values: pick(values, index), values)
        for name, values in batch._asdict().items()
        if name != "sequences"
    }
    return Batch(**picked, sequences=batch.sequences and Sequences(*(pick(v, index) for v in batch.sequences)))


def lay_out(batch: Batch, head: Head, advice_use: AdviceUse | None, value_limits: Array) -> FlatBatch:
    """The batch's decisions laid end to end, as the losses read them; `value_limits [S]` are those of each critic."""

    def flat(array: Array, *more: int) -> Array:
        return np.ascontiguousarray(array.reshape(-1, *more), np.float32)

    prior = advice = None
    if advice_use is not None and batch.advice is not None:
        if advice_use.use.mode == "prior":
            prior = flat(log_prior(batch.advice), head.outputs)
        elif advice_use.use.mode == "kl":
            advice = flat(batch.advice.probabilities, head.outputs), flat(batch.advice.strength)
    limit = np.repeat(value_limits, batch.weight.size // len(value_limits))
    return FlatBatch(
        taken=head.taken(batch.action, batch.mask),
        log_prob=flat(batch.log_prob),
        importance=flat(batch.importance),
        advantage=flat(batch.advantage),
        target=flat(batch.target),
        value=flat(batch.value),
        weight=flat(batch.weight),
        value_limit=limit,
        prior=prior,
        advice=advice,
    )


def rows_to_learn(batch: Batch) -> Array:
    """The number of rows (with memory: sequences) of each parameter set, `[S]`; padding lies behind them."""
    if batch.sequences is None:
        return np.count_nonzero(batch.weight, axis=1)
    return np.where(batch.weight.any(axis=(1, 2)), batch.weight.shape[1], 0)


def shuffle(rows: Array, count: int, random: np.random.Generator) -> list[Cut]:
    """The rows of each parameter set in random order, cut into `count` minibatches or one per row; none of none."""
    cuts = []
    for n in rows.tolist():
        parts = min(count, n)
        size, longer = divmod(n, parts) if parts else (0, 0)
        ends = [size * b + min(b, longer) for b in range(1, parts + 1)]
        cuts.append(Cut(random.permutation(n) if n else np.zeros(0, np.int64), ends))
    return cuts


def make_pass(batch: Batch, decisions: FlatBatch, cuts: list[Cut], normalized: bool) -> Pass:
    """The b-th minibatch of every parameter set as one, with advantages normalised if that is wanted.

    Parameter sets differ in the number and size of their minibatches, because agents leave episodes at different steps.
    """
    sets, steps = len(cuts), 1 if batch.sequences is None else batch.weight.shape[2]
    parts = [join(cuts, b) for b in range(max(len(cut.ends) for cut in cuts))]
    rows = [items for items, _ in parts]
    if steps > 1:
        rows = [(items[..., None] * steps + np.arange(steps)).reshape(sets, -1) for items in rows]
    if sets == 1:
        places = np.concatenate(rows, axis=1)[0]
    else:
        first = np.arange(sets)[:, None] * (decisions.weight.size // sets)
        places = np.concatenate([(first + part).reshape(-1) for part in rows])
    ends = list(itertools.accumulate(part.size for part in rows))
    counts = np.array([real for _, real in parts]) * steps
    weight, advantage = np.empty(len(places), np.float32), np.empty(len(places), np.float32)
    weigh.over(
        counts.size,
        *(decisions.weight, decisions.advantage, places, np.array(ends), counts, normalized, weight, advantage),
    )
    terms, found, start = np.empty((len(places), len(NAMES)), np.float32), [], 0
    for (items, real), part, end in zip(parts, rows, ends, strict=True):
        learning, now = None if all(real) else np.flatnonzero(real), slice(start, end)
        found.append(Minibatch(items, part, places[now], weight[now], advantage[now], terms[now], learning))
        start = end
    return Pass(found, np.array(ends), counts, terms)


def join(cuts: list[Cut], b: int) -> tuple[Array, list[int]]:
    """The b-th minibatch of every parameter set as `[S, K]`, shorter ones padded, and their lengths."""
    parts = [cut.order[cut.ends[b - 1] if b else 0 : cut.ends[b]] if b < len(cut.ends) else None for cut in cuts]
    if len(parts) == 1 and parts[0] is not None:
        return parts[0][None], [len(parts[0])]
    counts = [0 if part is None else len(part) for part in parts]
    items = np.zeros((len(parts), max(counts)), np.int64)
    for mine, part in zip(items, parts, strict=True):
        if part is not None:
            mine[: len(part)] = part
    return items, counts


def pieces(part: Minibatch, at_once: int | None) -> Iterator[Minibatch]:
    """Cut a minibatch without memory into pieces of at most so many rows; their gradients add up."""
    sets, count = part.items.shape
    if at_once is None or count <= at_once or part.rows.shape != part.items.shape:
        yield part
        return
    for start in range(0, count, at_once):
        now = slice(start, start + at_once)
        items, places, weight, advantage = (
            np.ascontiguousarray(array.reshape(sets, -1)[:, now])
            for array in (part.items, part.places, part.weight, part.advantage)
        )
        terms = part.terms.reshape(sets, count, -1)[:, now]
        own = np.ascontiguousarray(terms)  # a copy where there are several parameter sets
        yield Minibatch(
            items, items, places.reshape(-1), weight.reshape(-1), advantage.reshape(-1),
            own.reshape(-1, own.shape[-1]), part.learning,
        )  # fmt: skip
        terms[:] = own
