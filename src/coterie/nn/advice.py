"""The mathematics of advice: how it changes what a policy draws from, and the loss it adds.

The learner reads the same numbers that the policy acted with, so probability ratios start at 1. Actions drawn from a
mixture are weighted by the policy's own probability over the mixture's.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from coterie.core.advice import AdviceUse
from coterie.core.types import Advice, Array
from coterie.nn.distributions import IMPOSSIBLE

LEAST = 1e-6  # the smallest probability whose logarithm is taken


def behaviour_logits(advice_use: AdviceUse, out: Array, mask: Array | None, advice: Advice) -> Array:
    """Logits `[…, K]` of the distribution that actions are drawn from: the policy's, mixed or biased by advice."""
    if advice_use.use.mode == "prior":
        return out + log_prior(advice)
    if advice_use.use.mode not in ("mixture", "label"):
        return out
    weight = advice.strength[..., None]
    mixed = (1 - weight) * np.exp(log_softmax(out, mask)) + weight * advice.probabilities
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(mixed), IMPOSSIBLE).astype(np.float32)


def biased_logits(advice_use: AdviceUse, out: torch.Tensor, advice: Advice) -> torch.Tensor:
    """The logits that the learner evaluates: with the prior, if advice is used as one.

    A mixture is left out: the learner improves the policy's own distribution, and weighs the mixture's actions.
    """
    if advice_use.use.mode != "prior":
        return out
    given, probabilities, strength = (torch.as_tensor(part).cpu().numpy() for part in advice)
    return out + torch.from_numpy(log_prior(Advice(given, probabilities, strength))).to(out.device)


def advice_loss(
    advice_use: AdviceUse, out: torch.Tensor, mask: torch.Tensor | None, advice: Advice
) -> torch.Tensor | None:
    """strength · KL(advice ‖ policy) of each row `[…]`, 0 where no advice was given; None: there is no such loss."""
    if advice_use.use.mode != "kl":
        return None
    if mask is not None:
        out = torch.where(mask, out, IMPOSSIBLE)
    p, strength = torch.as_tensor(advice.probabilities), torch.as_tensor(advice.strength)
    return strength * (torch.xlogy(p, p) - p * out.log_softmax(-1)).sum(-1)


@njit(cache=True, error_model="numpy")
def add_advice_slopes(
    slopes: Array, probability: Array, advice: Array, strength: np.float32, weight: np.float32
) -> None:
    """Add the slopes of `advice_loss` of one row with respect to its logits, `[K]`: strength · (policy − advice).

    `probability` holds the policy's, 0 for illegal actions. The compiled twin of autograd through `advice_loss`.
    """
    for k in range(len(slopes)):
        slopes[k] += weight * strength * (probability[k] - advice[k])


def changes_learning(advice_use: AdviceUse, advice: Advice | None) -> bool:
    """Whether the learner has to read this advice: for a loss, or for biased logits."""
    return advice is not None and advice_use.use.mode in ("kl", "prior") and bool((advice.strength > 0).any())


def log_prior(advice: Advice) -> Array:
    """strength · log probability `[…, K]`, 0 where no advice was given; masks exclude illegal actions."""
    bias = advice.strength[..., None] * np.log(np.maximum(advice.probabilities, LEAST))
    return np.where(advice.given[..., None], bias, 0).astype(np.float32)


def log_softmax(out: Array, mask: Array | None) -> Array:
    """Log-probabilities `[…, K]` of logits, in double precision."""
    out = out.astype(np.float64) if mask is None else np.where(mask, out, IMPOSSIBLE).astype(np.float64)
    out = out - out.max(axis=-1, keepdims=True)
    return out - np.log(np.exp(out).sum(axis=-1, keepdims=True))
