"""Distributions over actions: how network outputs become actions, log-probabilities and entropies.

Acting draws in NumPy with a passed generator. Learning takes two steps, as with networks: `forward` finds
log-probabilities and entropies of given actions, `backward` turns a loss's slopes by them into slopes by outputs. The
mathematics of both is compiled (`log_probs.py`).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import ActionSpace, Array, Box, Discrete, MultiDiscrete, Text
from coterie.nn import log_probs
from coterie.nn.log_probs import IMPOSSIBLE, LOG_STD_HIGH, LOG_STD_LOW
from coterie.nn.packing import TextError, finite_bounds

EDGE = 1e-6  # bounded actions keep this fraction of the range away from the bounds
NO_MASK = np.zeros((1, 0), bool)


class Taken(NamedTuple):
    """Actions of R decisions as a distribution reads them."""

    action: Array  # [R, K]: numbers of choices (int64), or points in (0, 1)
    mask: Array  # [R, outputs] bool: what was legal; [1, 0]: everything


class Head(Protocol):
    """One distribution family."""

    outputs: int  # network outputs for one action

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        """Actions `[…, action]` and their log-probabilities `[…]` for outputs `[…, outputs]`."""
        ...

    def taken(self, action: Array, mask: Array | None) -> Taken:
        """Actions `[…, action]` of decisions with masks `[…, outputs]`, for `forward`."""
        ...

    def forward(self, out: Array, taken: Taken, rows: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies `[M]` of the decisions `rows [M]`, for outputs `[M, outputs]`.

        They and what `backward` needs stay until the next call.
        """
        ...

    def backward(self, by_log_prob: Array, by_entropy: Array) -> Array:
        """A loss's slopes `[M, outputs]` by the outputs of the last `forward`, from its slopes by what that found."""
        ...


class ChoiceScratch(NamedTuple):
    """Arrays for M decisions."""

    log_probs: Array  # [M, outputs]
    probability: Array  # [M, outputs]
    entropies: Array  # [M, K]: of each choice
    log_prob: Array  # [M]
    entropy: Array  # [M]
    slopes: Array  # [M, outputs]


class Choices:
    """One or several categorical choices."""

    def __init__(self, sizes: tuple[int, ...], single: bool) -> None:
        self.sizes, self.single, self.outputs = sizes, single, sum(sizes)
        self.counts = np.array(sizes)
        self.scratch = ChoiceScratch(*(np.empty(0, np.float32) for _ in ChoiceScratch._fields))
        self.last = (np.zeros((0, 0), np.int64), np.zeros(0, np.int64))  # actions and rows of the last `forward`

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        if mask is not None:
            out = np.where(mask, out, np.float32(IMPOSSIBLE))
        chosen, total, start = [], np.zeros(out.shape[:-1], np.float32), 0
        for size in self.sizes:
            logits = out[..., start : start + size]
            logits = logits - logits.max(axis=-1, keepdims=True)
            weights = np.exp(logits)
            sums = weights.cumsum(axis=-1, dtype=np.float64)
            if greedy:
                pick = logits.argmax(axis=-1)
            else:  # the first choice whose cumulated weight exceeds u·total has weight > 0, so it is legal
                pick = (sums <= random.random((*out.shape[:-1], 1)) * sums[..., -1:]).sum(axis=-1)
            at = np.take_along_axis(logits, pick[..., None], axis=-1)[..., 0]
            total += at - np.log(sums[..., -1]).astype(np.float32)
            chosen.append(pick)
            start += size
        return (chosen[0] if self.single else np.stack(chosen, axis=-1)), total

    def taken(self, action: Array, mask: Array | None) -> Taken:
        chosen = np.ascontiguousarray(action.reshape(-1, len(self.sizes)), np.int64)
        return Taken(chosen, NO_MASK if mask is None else np.ascontiguousarray(mask.reshape(-1, self.outputs)))

    def forward(self, out: Array, taken: Taken, rows: Array) -> tuple[Array, Array]:
        count = len(rows)
        if len(self.scratch.log_prob) != count:
            wide, flat = (count, self.outputs), (count,)
            shapes = (wide, wide, (count, len(self.sizes)), flat, flat, wide)
            self.scratch = ChoiceScratch(*(np.empty(shape, np.float32) for shape in shapes))
        s, self.last = self.scratch, (taken.action, rows)
        log_probs.choice_log_probs.over(
            count,
            *(out, rows, self.counts, taken.action, taken.mask),
            *(s.log_probs, s.probability, s.entropies, s.log_prob, s.entropy),
        )
        return s.log_prob, s.entropy

    def backward(self, by_log_prob: Array, by_entropy: Array) -> Array:
        s, (action, rows) = self.scratch, self.last
        log_probs.choice_slopes.over(
            len(rows),
            rows,
            self.counts,
            action,
            s.log_probs,
            s.probability,
            s.entropies,
            by_log_prob,
            by_entropy,
            s.slopes,
        )
        return s.slopes

    @property
    def probability(self) -> Array:
        """Probabilities `[M, outputs]` of every choice, from the last `forward`."""
        return self.scratch.probability


class _Bounded:
    """A variable x in (0, 1), scaled to the box: what both continuous families share."""

    def __init__(self, space: Box) -> None:
        low, high = finite_bounds(space)
        self.shape, self.size, self.outputs = space.shape, len(low), 2 * len(low)
        self.low, self.range = low, high - low
        self.log_range = float(np.log(self.range).sum())
        self.scratch = np.empty((0, 2, self.outputs), np.float32)  # of the last `forward`

    def stretch(self, x: Array) -> Array:
        x = np.clip(x, EDGE, 1 - EDGE).astype(np.float32)
        return (self.low + x * self.range).reshape(*x.shape[:-1], *self.shape)

    def taken(self, action: Array, mask: Array | None) -> Taken:
        point = (action.reshape(-1, self.size) - self.low) / self.range
        return Taken(np.clip(point, EDGE, 1 - EDGE).astype(np.float32), NO_MASK)

    def make_scratch(self, count: int) -> tuple[Array, Array, Array]:
        """Arrays for so many decisions: derivatives by outputs, log-probabilities, entropies."""
        self.scratch = np.empty((count, 2, self.outputs), np.float32)
        return self.scratch, np.empty(count, np.float32), np.empty(count, np.float32)

    def backward(self, by_log_prob: Array, by_entropy: Array) -> Array:
        slopes = np.empty((len(by_log_prob), self.outputs), np.float32)
        log_probs.bounded_slopes.over(len(slopes), self.scratch, by_log_prob, by_entropy, slopes)
        return slopes


class Beta(_Bounded):
    """Beta with both parameters above 1, so that it has one mode (Chou et al. 2017, section 4)."""

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        a, b = (1 + np.logaddexp(0, part) for part in np.split(out, 2, axis=-1))
        action = self.stretch(a / (a + b) if greedy else random.beta(a, b))
        return action, log_prob_of(self, out, action)

    def forward(self, out: Array, taken: Taken, rows: Array) -> tuple[Array, Array]:
        scratch, log_prob, entropy = self.make_scratch(len(rows))
        log_probs.beta_log_probs.over(len(rows), out, rows, taken.action, self.log_range, scratch, log_prob, entropy)
        return log_prob, entropy


class SquashedGaussian(_Bounded):
    """x = (tanh z + 1)/2 with z normal (Haarnoja et al. 2018, appendix C, for the change of variables).

    The entropy, that of z plus E[log dx/dz], has no closed form; the expectation is a sum over `NODES`. The entropy of
    z alone would not do as a bonus: it grows with the spread without end, which drives actions to the bounds.
    """

    # The trapezoidal rule in (z − mean)/std is accurate to about exp(−π²/(std · spacing)) for 1/cosh² (its poles are at
    # ±πi/2): 2e-4 at the largest std, e², and float32's precision below 4.
    NODES = np.linspace(-5, 5, 65, dtype=np.float32)
    WEIGHTS = (np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()).astype(np.float32)

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        mean, log_std = np.split(out, 2, axis=-1)
        noise = np.zeros_like(mean) if greedy else random.standard_normal(mean.shape, dtype=np.float32)
        z = mean + np.exp(np.clip(log_std, LOG_STD_LOW, LOG_STD_HIGH)) * noise
        action = self.stretch((np.tanh(z) + 1) / 2)
        return action, log_prob_of(self, out, action)

    def forward(self, out: Array, taken: Taken, rows: Array) -> tuple[Array, Array]:
        scratch, log_prob, entropy = self.make_scratch(len(rows))
        log_probs.squashed_log_probs.over(
            len(rows), out, rows, taken.action, self.log_range, self.NODES, self.WEIGHTS, scratch, log_prob, entropy
        )
        return log_prob, entropy


def log_prob_of(head: Head, out: Array, action: Array) -> Array:
    """Log-probabilities `[…]` of actions `[…, action]`, for outputs `[…, outputs]`."""
    lead = out.shape[:-1]
    flat = np.ascontiguousarray(out.reshape(-1, head.outputs))
    return head.forward(flat, head.taken(action, None), np.arange(len(flat)))[0].reshape(lead)


class _LogProb(torch.autograd.Function):
    """`Head.forward` and `backward` for PyTorch."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, head: Head, taken: Taken) -> tuple[Tensor, Tensor]:
        ctx.head, ctx.taken = head, taken
        ctx.save_for_backward(out)
        found = head.forward(out.detach().cpu().numpy(), taken, np.arange(len(out)))
        return tuple(torch.tensor(part, device=out.device) for part in found)  # type: ignore[return-value]  # a pair

    @staticmethod
    def backward(ctx: Any, by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        ctx.head.forward(out.detach().cpu().numpy(), ctx.taken, np.arange(len(out)))
        slopes = ctx.head.backward(by_log_prob.cpu().numpy(), by_entropy.cpu().numpy())
        return torch.tensor(slopes, device=out.device), None, None


def evaluate_actions(head: Head, out: Tensor, action: Array, mask: Array | None) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy `[…]` of actions as tensors that PyTorch differentiates, for a user's own losses."""
    flat = out.reshape(-1, head.outputs)
    log_prob, entropy = _LogProb.apply(flat, head, head.taken(action, mask))
    return log_prob.reshape(out.shape[:-1]), entropy.reshape(out.shape[:-1])


def head(space: ActionSpace, continuous: Literal["beta", "gaussian"]) -> Head:
    """The distribution for an action space."""
    match space:
        case Discrete(n):
            return Choices((n,), single=True)
        case MultiDiscrete(sizes):
            return Choices(sizes, single=False)
        case Box():
            return Beta(space) if continuous == "beta" else SquashedGaussian(space)
        case Text():
            raise TextError("actions")
