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
    return out + torch.from_numpy(log_prior(_in_main_memory(advice))).to(out.device)


@njit(cache=True, error_model="numpy")
def add_advice_slopes(
    slopes: Array, probability: Array, advice: Array, strength: np.float32, weight: np.float32
) -> None:
    """Add the slopes of the advice loss of one row with respect to its logits, `[K]`.

    The loss is weight · strength · KL(advice ‖ policy); `probability` holds the policy's, 0 for illegal actions.
    """
    for k in range(len(slopes)):
        slopes[k] += weight * strength * (probability[k] - advice[k])


def advice_slopes(out: torch.Tensor, mask: torch.Tensor | None, advice: Advice, weight: Array) -> Array:
    """The slopes of the advice loss with respect to logits `out [S, M, K]`; 0 in rows without weight or advice."""
    logits = out.detach().cpu().numpy()
    own = np.exp(log_softmax(logits, None if mask is None else mask.cpu().numpy())).astype(np.float32)
    slopes, given = np.zeros_like(logits), _in_main_memory(advice)
    for s in range(len(slopes)):
        _add_rows(slopes[s], own[s], given.probabilities[s], given.strength[s], weight[s])
    return slopes


@njit(cache=True, error_model="numpy")
def _add_rows(slopes: Array, probability: Array, advice: Array, strength: Array, weight: Array) -> None:
    """`add_advice_slopes` of all rows; padding may hold anything."""
    for m in range(len(slopes)):
        if weight[m] != 0 and strength[m] > 0:
            add_advice_slopes(slopes[m], probability[m], advice[m], strength[m], weight[m])


def _in_main_memory(advice: Advice) -> Advice:
    """Advice of a batch, whose arrays may be tensors on a device."""
    return Advice(*(torch.as_tensor(part).cpu().numpy() for part in advice))


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
