"""Sample answers from a transformer, and the log-probabilities of answers with gradients.

Each prompt is read once, whatever the number of answers. Token ids and log-probabilities are kept as sampled: nothing
is tokenised again. A random number decides each token by its place `[row, step]`, so samples do not depend on when the
other rows end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coterie.core.types import Array
from coterie.lm.learn.network import CausalNetwork, Keys
from coterie.lm.learn.transformer import Spans, Transformer

if TYPE_CHECKING:
    from coterie.lm.learn.graphed_passes import GraphedPasses

PAD = -1  # in arrays of tokens: no token
ALIGNED = 64  # a packed row and parts of it are multiples of so many: kernels are compiled once for all of them
ROUND = 8  # rows are multiples of so many tokens, as kernels of attention want them
LOGITS_AT_ONCE = 1 << 28  # beyond this many, logits are computed in parts and again for the gradient


class Samples(NamedTuple):
    """Answers to P prompts, K each, of up to L tokens; the end token is part of an answer."""

    tokens: Array  # [P, K, L] int32, PAD after the end
    log_probs: Array  # [P, K, L] float32, at the sampling temperature; 0 after the end
    entropy: Array  # [P, K] float32: mean entropy of the tokens' distributions


@dataclass(frozen=True)
class SampleSpec:
    """Settings of sampling answers."""

    count: int  # answers per prompt
    max_tokens: int
    temperature: float  # 0: the most likely token
    end: int  # the token that ends an answer
    adapter: int | None = None


@torch.no_grad()
def sample(network: CausalNetwork, prompts: Sequence[Sequence[int]], spec: SampleSpec, noise: Array) -> Samples:
    """Sample answers; `noise` `[P · K, L]` holds uniform numbers in [0, 1)."""
    rows = len(prompts) * spec.count
    tokens = np.full((rows, spec.max_tokens), PAD, np.int32)
    log_probs = np.zeros((rows, spec.max_tokens), np.float32)
    entropy = np.zeros(rows, np.float64)
    if not rows:
        return Samples(
            tokens.reshape(0, spec.count, -1), log_probs.reshape(0, spec.count, -1), np.zeros((0, spec.count), "f4")
        )
    device = network.device
    uniform = torch.from_numpy(np.ascontiguousarray(noise, np.float32)).to(device)
    caches, logits, padding = _prefill(network, prompts, spec)
    left = torch.arange(rows, device=device)  # rows that still write
    for step in range(spec.max_tokens):
        chosen, log_prob, spread = _draw(logits, spec.temperature, uniform[left, step])
        here = left.cpu().numpy()
        tokens[here, step], log_probs[here, step] = chosen.cpu().numpy(), log_prob.cpu().numpy()
        entropy[here] += spread.cpu().numpy()
        going = chosen != spec.end
        if step + 1 == spec.max_tokens or not bool(going.any()):
            break
        if not bool(going.all()):
            kept = going.nonzero()[:, 0]
            left, chosen, padding = left[kept], chosen[kept], padding[kept]
            caches = [cache.repeated(1, kept) for cache in caches]
        logits = _advance(network, chosen, caches, padding, spec.adapter)
    lengths = np.maximum((tokens != PAD).sum(axis=1), 1)
    return Samples(
        tokens.reshape(len(prompts), spec.count, -1),
        log_probs.reshape(len(prompts), spec.count, -1),
        (entropy / lengths).astype(np.float32).reshape(len(prompts), spec.count),
    )


def _prefill(
    network: CausalNetwork, prompts: Sequence[Sequence[int]], spec: SampleSpec
) -> tuple[Sequence[Keys], Tensor, Tensor]:
    """Read the prompts; returns caches, the next token's logits and the padding, K rows per prompt."""
    table, padding, positions, mask = pad_left(prompts, network.device)
    caches = network.new_caches(len(prompts), table.shape[1] + spec.max_tokens)
    logits = network.logits(network(table, spec.adapter, positions, mask, caches)[:, -1])
    if spec.count > 1:
        caches = [cache.repeated(spec.count) for cache in caches]
        logits, padding = logits.repeat_interleave(spec.count, dim=0), padding.repeat_interleave(spec.count)
    return caches, logits, padding


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompts as one table [P, L], padded on the left: tokens, padding [P], positions [P, L], mask [P, 1, L, L]."""
    longest = max(map(len, prompts))
    padding = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    table = np.zeros((len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        table[row, longest - len(prompt) :] = prompt
    columns = torch.arange(longest, device=device)
    seen = columns[None] >= padding[:, None]
    alone = torch.eye(longest, dtype=torch.bool, device=device)  # padding looks at itself: softmax of nothing is NaN
    mask = (seen[:, None, None, :] & (columns[None, :] <= columns[:, None])) | alone
    positions = (columns[None] - padding[:, None]).clamp(min=0)
    return torch.from_numpy(table).to(device), padding, positions, mask


def _advance(
    network: CausalNetwork, chosen: Tensor, caches: Sequence[Keys], padding: Tensor, adapter: int | None
) -> Tensor:
    """Read one more token per row; returns the logits of the next."""
    column = caches[0].filled
    mask = torch.arange(column + 1, device=padding.device)[None, :] >= padding[:, None]
    positions = (column - padding)[:, None]
    hidden = network(chosen[:, None].long(), adapter, positions, mask[:, None, None, :], caches)
    return network.logits(hidden[:, -1])


def _draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens by inverting the distribution function, their log-probabilities, and the entropies."""
    log_probs = F.log_softmax(logits / (temperature or 1.0), dim=-1)
    probabilities = log_probs.exp()
    if temperature == 0:
        chosen = logits.argmax(dim=-1)
    else:
        sums = probabilities.double().cumsum(dim=-1)
        chosen = (sums <= uniform.double()[:, None] * sums[:, -1:]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)
    entropy = -(probabilities * log_probs).sum(dim=-1)
    return chosen, log_probs.gather(1, chosen[:, None])[:, 0], entropy


class Graded(NamedTuple):
    """Log-probabilities of answers, with gradients."""

    log_probs: Tensor  # [P, K, L]; 0 where there is no token
    entropy: Tensor  # [P, K, L]: of the distributions that the tokens were drawn from
    valid: Tensor  # [P, K, L] bool: there is a token


def grade(
    network: CausalNetwork,
    prompts: Sequence[Sequence[int] | Array],
    answers: Array,
    temperature: float = 1.0,
    adapter: int | None = None,
    passes: GraphedPasses | None = None,
) -> Graded:
    """Log-probabilities of answers `[P, K, L]` (PAD after the end), K to every prompt, which is read once.

    A prompt and its answers stand side by side without gaps; answers do not see each other. Only tokens of answers get
    logits. `passes` replay those of earlier batches of about this size.
    """
    device, temperature = network.device, temperature or 1.0
    valid = torch.from_numpy(answers != PAD).to(device)
    targets = answers[answers != PAD].astype(np.int64)
    packs = device.type == "cuda" and isinstance(network, Transformer)
    packed = PackedLayout.of(prompts, answers) if packs else None
    found = None
    if packed is not None and passes is not None and torch.is_grad_enabled():
        found = passes.read(packed, targets, temperature)
    if found is None:
        if packed is None:
            hidden = _read_rows(network, Layout.of(prompts, answers), adapter)
        else:
            hidden = _read_packed(network, packed, adapter)
        found = token_log_probs(network, hidden, torch.from_numpy(targets).to(device), temperature)
    zeros = torch.zeros(valid.shape, device=device)
    log_probs, entropy = (zeros.masked_scatter(valid, one) for one in found)
    return Graded(log_probs, entropy, valid)


def _read_rows(network: CausalNetwork, layout: Layout, adapter: int | None) -> Tensor:
    """Hidden states `[M, W]` that predict the answers' tokens, from padded rows: what PyTorch's attention takes."""
    tokens, position, owner, source = (torch.from_numpy(array).to(network.device) for array in layout)
    return network(tokens, adapter, position, mask=seen_by(owner)).flatten(0, 1)[source]


def _read_packed(network: CausalNetwork, packed: PackedLayout, adapter: int | None) -> Tensor:
    """The same from a single row without padding: what our own kernels take."""
    whole = -(-packed.table.shape[1] // ALIGNED) * ALIGNED
    table, source = (torch.from_numpy(a).to(network.device) for a in (packed.padded(whole), packed.source))
    return read_table(network, table, adapter)[source]


def read_table(network: CausalNetwork, table: Tensor, adapter: int | None) -> Tensor:
    """Hidden states `[N, W]` of a row; the table is that of `PackedLayout`."""
    hidden: Tensor = network(table[None, 0], adapter, table[None, 1], mask=Spans(*table[2:]))[0]
    return hidden


class Layout(NamedTuple):
    """Prompts and their answers as rows `[P, T]`; the last token of an answer is not read, for nothing follows it."""

    tokens: Array  # [P, T] int64
    position: Array  # [P, T] int64: as if each answer followed its prompt alone
    owner: Array  # [P, T] int64: 0 for the prompt, 1, 2, … for answers, −1 for no token
    source: Array  # [M] int64: for every token of an answer, the cell of `[P, T]` that predicts it

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int] | Array], answers: Array) -> Layout:
        """The rows of K answers `[P, K, L]` to each prompt."""
        begins = np.array([len(prompt) for prompt in prompts])
        read = np.maximum((answers != PAD).sum(axis=2) - 1, 0)  # [P, K]
        starts = begins[:, None] + np.cumsum(read, axis=1) - read
        width = -(-int((begins + read.sum(axis=1)).max()) // ROUND) * ROUND
        tables = np.zeros((3, len(prompts), width), np.int64)
        tables[2] = -1
        for number, prompt in enumerate(prompts):
            tables[0, number, : len(prompt)] = prompt
            tables[1, number, : len(prompt)] = np.arange(len(prompt))
            tables[2, number, : len(prompt)] = 0
        row, answer, place = np.nonzero(answers != PAD)
        source = row * width + np.where(place == 0, begins[row] - 1, starts[row, answer] + place - 1)
        kept = place < read[row, answer]
        row, answer, place = row[kept], answer[kept], place[kept]
        cells = row, starts[row, answer] + place
        for table, values in zip(tables, (answers[row, answer, place], begins[row] + place, answer + 1), strict=True):
            table[cells] = values
        return cls(tables[0], tables[1], tables[2], source.astype(np.int64))


class PackedLayout(NamedTuple):
    """Prompts and their answers in a single row of N tokens without gaps."""

    table: Array  # [6, N] int32: tokens, positions as if each answer followed its prompt alone, and `Spans`
    source: Array  # [M] int64: for every token of an answer, the place that predicts it

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int] | Array], answers: Array) -> PackedLayout:
        """The row of K answers `[P, K, L]` to each prompt; an answer's last token is not read."""
        _, count, longest = answers.shape
        begins = np.array([len(prompt) for prompt in prompts])
        written = (answers != PAD).sum(axis=2)
        lengths = np.concatenate([begins[:, None], np.maximum(written - 1, 0)], axis=1)  # [P, 1 + K] of the parts
        ends = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape)
        starts = ends - lengths
        total = int(ends[-1, -1])
        at, part = np.arange(total), np.repeat(np.arange(lengths.size), lengths.reshape(-1))
        group, answer = part // (count + 1), part % (count + 1) != 0
        tokens = np.empty(total, np.int32)
        tokens[~answer] = np.concatenate([np.asarray(prompt) for prompt in prompts])
        kept = np.arange(longest) < written[..., None] - 1
        tokens[answer] = answers[kept]
        begin, own = starts[group, 0], starts.reshape(-1)[part]
        position = at - own + np.where(answer, begins[group], 0)
        prompt_end = np.where(answer, ends[group, 0], begin)
        last = np.where(answer, ends.reshape(-1)[part], ends[group, -1])
        row, column, place = np.nonzero(answers != PAD)
        source = np.where(place == 0, ends[row, 0] - 1, starts[row, column + 1] + place - 1)
        return cls(np.stack([tokens, position, begin, prompt_end, own, last]).astype(np.int32), source)

    def padded(self, width: int) -> Array:
        """The table with tokens at its end that see themselves and that nobody asks for."""
        alone = np.arange(self.table.shape[1], width, dtype=np.int32)
        beyond = np.stack([0 * alone, 0 * alone, alone, alone, alone, alone + 1])
        return np.concatenate([self.table, beyond], axis=1)


def seen_by(owner: Tensor) -> Tensor:
    """[P, 1, T, T] bool: a token sees the prompt before it and the earlier tokens of its own answer."""
    columns = torch.arange(owner.shape[1], device=owner.device)
    before = columns[None, :] <= columns[:, None]
    seen: Tensor = before & ((owner[:, None, :] == 0) | (owner[:, :, None] == owner[:, None, :]))
    return seen[:, None]


def token_log_probs(
    network: CausalNetwork, hidden: Tensor, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities `[M]` of tokens and the entropies of their distributions, a part of the logits at a time."""

    def part(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = F.log_softmax(network.logits(hidden) / temperature, dim=-1)
        return log_probs.gather(1, tokens[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(dim=-1)

    at_once = max(1, LOGITS_AT_ONCE // len(network.output_embedding))
    if hidden.is_cuda and isinstance(network, Transformer):
        from coterie.lm.learn import log_prob_kernels as log_probs  # Triton exists only where a GPU may

        at_once = -(-at_once // ALIGNED) * ALIGNED
        return log_probs.token_log_probs(hidden, network.output_embedding, tokens, temperature, at_once)
    if len(tokens) <= at_once:
        return part(hidden, tokens)
    parts = [
        checkpoint(part, hidden[i : i + at_once], tokens[i : i + at_once], use_reentrant=False)
        for i in range(0, len(tokens), at_once)
    ]
    return torch.cat([chosen for chosen, _ in parts]), torch.cat([spread for _, spread in parts])
