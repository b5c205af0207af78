"""The mathematics of advice: how it changes what a policy draws from, and the loss it adds.

The learner reads the same numbers that the policy acted with, so probability ratios start at 1. Actions drawn from a
mixture are weighted by the policy's own probability over the mixture's.
"""

from __future__ import annotations

import numpy as np

from coterie.core.advice import AdviceUse
from coterie.core.types import Advice, Array
from coterie.nn.launch import kernel
from coterie.nn.log_probs import IMPOSSIBLE

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


@kernel
def add_advice_slopes(
    m: int, slopes: Array, probability: Array, rows: Array, weight: Array, advice: Array, strength: Array
) -> None:
    """Add the slopes `[M, K]` of the advice loss by logits, for decisions `rows [M]` and their `weight [M]`.

    The loss is weight · strength · KL(advice ‖ policy), with `advice [R, K]` and `strength [R]`. The policy's
    `probability [M, K]` is 0 for illegal actions.
    """
    r = rows[m]
    if weight[m] > 0 and strength[r] > 0:  # padding may hold anything
        for k in range(slopes.shape[1]):
            slopes[m, k] += weight[m] * strength[r] * (probability[m, k] - advice[r, k])


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
