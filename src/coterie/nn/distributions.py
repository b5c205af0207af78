"""Distributions over actions: how network outputs become actions, log-probabilities and entropies.

Acting runs in NumPy with a passed generator, learning in PyTorch; tests hold the two equal.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import ActionSpace, Array, Box, Discrete, MultiDiscrete, Text
from coterie.nn.packing import TextError, finite_bounds

IMPOSSIBLE = -1e9  # a masked logit: finite, so that no 0·∞ arises in the entropy
LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0  # bounds of the logarithm of a squashed Gaussian's deviation
EDGE = 1e-6  # bounded actions keep this fraction of the range away from the bounds


class Head(Protocol):
    """One distribution family."""

    outputs: int  # network outputs for one action

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        """Actions `[…, action]` and their log-probabilities `[…]` for outputs `[…, outputs]`."""
        ...

    def evaluate_actions(self, out: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy `[…]` of given actions."""
        ...


class Choices:
    """One or several categorical choices."""

    def __init__(self, sizes: tuple[int, ...], single: bool) -> None:
        self.sizes, self.single, self.outputs = sizes, single, sum(sizes)

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

    def evaluate_actions(self, out: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is not None:
            out = torch.where(mask, out, IMPOSSIBLE)
        if self.single:
            return _categorical(out, action)
        parts = [_categorical(logits, action[..., i]) for i, logits in enumerate(out.split(self.sizes, dim=-1))]
        return sum(p[0] for p in parts), sum(p[1] for p in parts)  # type: ignore[return-value]  # sizes is not empty


def _categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = torch.log_softmax(logits, dim=-1)
    picked = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return picked, -(log_probs.exp() * log_probs).sum(dim=-1)


class _Bounded:
    """A variable x in (0, 1), scaled to the box: what both continuous families share."""

    def __init__(self, space: Box) -> None:
        low, high = finite_bounds(space)
        self.shape, self.size, self.outputs = space.shape, len(low), 2 * len(low)
        self.low, self.range = low, high - low
        self.log_range = float(np.log(self.range).sum())

    def stretch(self, x: Array) -> Array:
        x = np.clip(x, EDGE, 1 - EDGE).astype(np.float32)
        return (self.low + x * self.range).reshape(*x.shape[:-1], *self.shape)

    def squeeze(self, action: Tensor) -> Tensor:
        flat = action.reshape(*action.shape[: action.ndim - len(self.shape)], self.size)
        low, size = (torch.as_tensor(array, device=action.device) for array in (self.low, self.range))
        x = (flat - low) / size
        return x.clamp(EDGE, 1 - EDGE)


class Beta(_Bounded):
    """Beta with both parameters above 1, so that it has one mode (Chou et al. 2017, section 4)."""

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        a, b = (1 + np.logaddexp(0, part) for part in np.split(out, 2, axis=-1))
        action = self.stretch(a / (a + b) if greedy else random.beta(a, b))
        with torch.no_grad():
            return action, self.evaluate_actions(torch.from_numpy(out), torch.from_numpy(action), None)[0].numpy()

    def evaluate_actions(self, out: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        a, b = (1 + torch.nn.functional.softplus(part) for part in out.chunk(2, dim=-1))
        distribution = torch.distributions.Beta(a, b, validate_args=False)
        log_prob = distribution.log_prob(self.squeeze(action)).sum(-1) - self.log_range
        return log_prob, distribution.entropy().sum(-1) + self.log_range


class SquashedGaussian(_Bounded):
    """x = (tanh z + 1)/2 with z normal (Haarnoja et al. 2018, appendix C, for the change of variables).

    The entropy, that of z plus E[log dx/dz], has no closed form; the expectation is a sum over `NODES`. The entropy of
    z alone would not do as a bonus: it grows with the spread without end, which drives actions to the bounds.
    """

    # The trapezoidal rule in (z − mean)/std is accurate to about exp(−π²/(std · spacing)) for 1/cosh² (its poles are at
    # ±πi/2): 2e-4 at the largest std, e², and float32's precision below 4.
    NODES = torch.linspace(-5, 5, 65)
    WEIGHTS = torch.softmax(-0.5 * NODES**2, dim=0)

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        mean, log_std = np.split(out, 2, axis=-1)
        noise = np.zeros_like(mean) if greedy else random.standard_normal(mean.shape, dtype=np.float32)
        z = mean + np.exp(np.clip(log_std, LOG_STD_LOW, LOG_STD_HIGH)) * noise
        action = self.stretch((np.tanh(z) + 1) / 2)
        with torch.no_grad():
            return action, self.log_prob(torch.from_numpy(out), torch.from_numpy(action)).numpy()

    def evaluate_actions(self, out: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = out.chunk(2, dim=-1)
        log_std = log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)
        nodes, weights = self.NODES.to(out.device), self.WEIGHTS.to(out.device)
        z = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
        slope = math.log(2) - 2 * (z + torch.nn.functional.softplus(-2 * z))  # log dx/dz
        entropy = log_std + 0.5 * math.log(2 * math.pi * math.e) + slope @ weights
        return self.log_prob(out, action), entropy.sum(-1) + self.log_range

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability `[…]` of given actions."""
        mean, log_std = out.chunk(2, dim=-1)
        log_std = log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)
        x = self.squeeze(action)
        z = torch.atanh(2 * x - 1)
        normal = -0.5 * ((z - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        # dx/dz = (1 − tanh² z)/2 = 2x(1 − x)
        return (normal - torch.log(2 * x * (1 - x))).sum(-1) - self.log_range


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
