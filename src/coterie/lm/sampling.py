"""Sample answers from a transformer, and the log-probabilities of answers with gradients.

Each prompt is read once, whatever the number of answers. Token ids and log-probabilities are kept as sampled: nothing
is tokenised again. A random number decides each token by its place `[row, step]`, so samples do not depend on when the
other rows end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.types import Array
from coterie.lm.transformer import LayerCache, Transformer

PAD = -1  # in arrays of tokens: no token


class Samples(NamedTuple):
    """Answers to P prompts, K each, of up to L tokens; the end token is part of an answer."""

    tokens: Array  # [P, K, L] int32, PAD after the end
    log_probs: Array  # [P, K, L] float32, at the sampling temperature; 0 after the end
    entropy: Array  # [P, K] float32: mean entropy of the tokens' distributions


@dataclass(frozen=True)
class SampleSpec:
    """How to sample."""

    count: int  # answers per prompt
    max_tokens: int
    temperature: float  # 0: the most likely token
    end: int  # the token that ends an answer
    adapter: int | None = None


@torch.no_grad()
def sample(network: Transformer, prompts: Sequence[Sequence[int]], spec: SampleSpec, noise: Array) -> Samples:
    """Sample answers; `noise` `[P · K, L]` holds uniform numbers in [0, 1)."""
    rows = len(prompts) * spec.count
    tokens = np.full((rows, spec.max_tokens), PAD, np.int32)
    log_probs = np.zeros((rows, spec.max_tokens), np.float32)
    entropy = np.zeros(rows, np.float64)
    if not rows:
        return Samples(
            tokens.reshape(0, spec.count, -1), log_probs.reshape(0, spec.count, -1), np.zeros((0, spec.count), "f4")
        )
    device = network.embedding.device
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
    network: Transformer, prompts: Sequence[Sequence[int]], spec: SampleSpec
) -> tuple[list[LayerCache], Tensor, Tensor]:
    """Read the prompts; returns caches, the next token's logits and the padding, K rows per prompt."""
    table, padding, positions, mask = pad_left(prompts, network.embedding.device)
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
    network: Transformer, chosen: Tensor, caches: list[LayerCache], padding: Tensor, adapter: int | None
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
    network: Transformer,
    prompts: Sequence[Sequence[int]],
    answers: Array,
    temperature: float = 1.0,
    adapter: int | None = None,
) -> Graded:
    """Log-probabilities of answers `[P, K, L]` (PAD after the end), K to every prompt, which is read once."""
    device = network.embedding.device
    valid = torch.from_numpy(answers != PAD).to(device)
    length = max(1, int(valid.sum(dim=-1).max()))  # of the longest answer
    tokens = torch.from_numpy(np.maximum(answers, 0).astype(np.int64)).to(device)
    read = PromptReader(network, prompts, adapter)
    first = read.hidden[:, -1][:, None, None].expand(-1, answers.shape[1], 1, -1)  # predicts every first token
    hidden = torch.cat([first, read.continued(tokens[..., : length - 1])], dim=2) if length > 1 else first
    picked = valid[..., :length]
    log_probs = F.log_softmax(network.logits(hidden[picked]) / (temperature or 1.0), dim=-1)  # [M, V]: real tokens only
    chosen = log_probs.gather(1, tokens[..., :length][picked][:, None])[:, 0]
    spread = -(log_probs.exp() * log_probs).sum(dim=-1)
    zeros = torch.zeros(valid.shape, device=device)
    return Graded(zeros.masked_scatter(valid, chosen), zeros.masked_scatter(valid, spread), valid)


class PromptReader:
    """Prompts that were read with gradients, and answers that go on from them."""

    def __init__(self, network: Transformer, prompts: Sequence[Sequence[int]], adapter: int | None) -> None:
        self.network, self.adapter = network, adapter
        self.caches = [GradientCache() for _ in network.layers]
        table, self.padding, positions, mask = pad_left(prompts, network.embedding.device)
        self.hidden = network(table, adapter, positions, mask, self.caches)

    def continued(self, tokens: Tensor) -> Tensor:
        """Hidden states `[P, K, L, W]` of the answers' tokens `[P, K, L]`."""
        prompts, count, length = tokens.shape
        start = self.hidden.shape[1]
        columns = torch.arange(start + length, device=tokens.device)
        padding = self.padding.repeat_interleave(count)
        seen = columns[None] >= padding[:, None]
        causal = columns[None, :] <= columns[start:, None]
        positions = columns[None, start:] - padding[:, None]
        caches = [cache.repeated(count) for cache in self.caches]
        flat, mask = tokens.reshape(prompts * count, length), seen[:, None, None, :] & causal
        return self.network(flat, self.adapter, positions, mask, caches).view(prompts, count, length, -1)


class GradientCache:
    """Keys and values of one layer that gradients flow through."""

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions; returns all so far."""
        if self.held is not None:
            key, value = torch.cat([self.held[0], key], dim=2), torch.cat([self.held[1], value], dim=2)
        self.held = key, value
        return self.held

    def repeated(self, times: int) -> GradientCache:
        """A cache in which every row stands `times` times."""
        assert self.held is not None
        twin = GradientCache()
        twin.held = self.held[0].repeat_interleave(times, dim=0), self.held[1].repeat_interleave(times, dim=0)
        return twin
