"""Log-probabilities of tokens from hidden states, with gradients, as GPU kernels in Triton.

Logits are made a part at a time and again for the gradient, which replaces them in place: no more than one part of
`[tokens, vocabulary]` is ever in memory, and each is read once.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN202  # Triton's kernels take pointers

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits that a program reads at once


@triton.jit
def _read(logits_ptr, token_ptr, found_ptr, log_ptr, entropy_ptr, vocabulary, temperature, BLOCK: tl.constexpr):
    """The softmax of a row: its token's log-probability, the logarithm of the sum, and the entropy."""
    row = tl.program_id(0).to(tl.int64)
    base = logits_ptr + row * vocabulary
    most = tl.full((), -1.0e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    spread = tl.full((), 0.0, tl.float32)  # the sum of weight times logit
    for place in range(0, vocabulary, BLOCK):
        at = place + tl.arange(0, BLOCK)
        logit = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature
        higher = tl.maximum(most, tl.max(logit, axis=0))
        weight = tl.exp(logit - higher)
        shrink = tl.exp(most - higher)
        total = total * shrink + tl.sum(weight, axis=0)
        spread = spread * shrink + tl.sum(tl.where(weight > 0, weight * logit, 0.0), axis=0)
        most = higher
    log = most + tl.log(total)
    own = tl.load(base + tl.load(token_ptr + row)).to(tl.float32) / temperature
    tl.store(found_ptr + row, own - log)
    tl.store(log_ptr + row, log)
    tl.store(entropy_ptr + row, log - spread / total)


@triton.jit
def _slopes(
    logits_ptr, token_ptr, log_ptr, entropy_ptr, found_slope_ptr, entropy_slope_ptr, vocabulary, temperature,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Put the slopes of a row of logits in the logits' place."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ptr + row)
    log, entropy = tl.load(log_ptr + row), tl.load(entropy_ptr + row)
    of_found, of_entropy = tl.load(found_slope_ptr + row), tl.load(entropy_slope_ptr + row)
    for place in range(0, vocabulary, BLOCK):
        at = place + tl.arange(0, BLOCK)
        cells = logits_ptr + row * vocabulary + at
        logit = tl.load(cells, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature
        weight = tl.exp(logit - log)
        surprise = tl.where(weight > 0, logit - log + entropy, 0.0)
        slope = of_found * (tl.where(at == token, 1.0, 0.0) - weight) - of_entropy * weight * surprise
        tl.store(cells, (slope / temperature).to(logits_ptr.dtype.element_ty), mask=at < vocabulary)


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, embedding: Tensor, tokens: Tensor, temperature: float, at_once: int
    ) -> tuple[Tensor, Tensor]:
        weight, vocabulary = embedding.to(hidden.dtype), len(embedding)
        # Each has its own memory: for rows of one table, whose addresses are odd, kernels would be compiled again.
        found, logs, entropy = (torch.empty(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(3))
        for first in range(0, len(hidden), at_once):
            part = slice(first, first + at_once)
            logits = hidden[part] @ weight.T
            _read[(len(logits),)](
                logits, tokens[part], found[part], logs[part], entropy[part], vocabulary, temperature, BLOCK=BLOCK,
                num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(hidden, embedding, tokens, logs, entropy)
        ctx.temperature, ctx.at_once = temperature, at_once
        return found, entropy

    @staticmethod
    def backward(
        ctx: Any, found_slope: Tensor, entropy_slope: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden, embedding, tokens, logs, entropy = ctx.saved_tensors
        weight, vocabulary = embedding.to(hidden.dtype), len(embedding)
        found_slope, entropy_slope = found_slope.contiguous(), entropy_slope.contiguous()
        back = torch.empty_like(hidden)
        total = torch.zeros_like(embedding) if ctx.needs_input_grad[1] else None
        for first in range(0, len(hidden), ctx.at_once):
            part = slice(first, first + ctx.at_once)
            slopes = hidden[part] @ weight.T
            _slopes[(len(slopes),)](
                slopes, tokens[part], logs[part], entropy[part], found_slope[part], entropy_slope[part],
                vocabulary, ctx.temperature, BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip
            torch.mm(slopes, weight, out=back[part])
            if total is not None:
                total += slopes.T @ hidden[part]
        return back, total, None, None, None


def token_log_probs(
    hidden: Tensor, embedding: Tensor, tokens: Tensor, temperature: float, at_once: int
) -> tuple[Tensor, Tensor]:
    """Log-probabilities `[M]` of tokens after hidden states `[M, W]`, and the entropies, `at_once` tokens at a time."""
    found, entropy = _TokenLogProbs.apply(hidden.contiguous(), embedding, tokens, temperature, at_once)
    return found, entropy
