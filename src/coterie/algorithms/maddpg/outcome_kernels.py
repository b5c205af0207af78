"""Compiled twin of `outcomes.py`: distributions told by a critic, and how far they are from others."""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.preferences.risk_kernels import RiskSlopes

FLOOR = np.float32(0.02)  # of the usual deviation: no decision pulls more than 50 times as hard as that
TINY = np.float32(1e-30)


@njit(cache=True, error_model="numpy")
def hurdled(outputs: int) -> bool:
    """Whether a critic with this many outputs tells nothing or something; see `outcomes.tell`."""
    return outputs == 2 or (outputs > 1 and outputs % 2 == 1)


@njit(cache=True, error_model="numpy")
def count_outcomes(outputs: int) -> int:
    """How many outcomes a critic with this many outputs tells."""
    return outputs // 2 + 1 if hurdled(outputs) else max(outputs // 2, 1)


@njit(cache=True, error_model="numpy")
def tell(out: Array, chances: Array, outcomes: Array) -> np.float32:
    """Read a critic's row as Q chances and outcomes, as in `outcomes.tell`. Returns their mean."""
    count = len(chances)
    if count == 1:
        chances[0], outcomes[0] = 1, out[0]
        return out[0]
    if hurdled(len(out)):
        something = np.float32(1 / (1 + np.exp(-out[0])))
        chances[0], outcomes[0] = 1 - something, 0
        if count == 2:
            chances[1], outcomes[1] = something, out[1]
            return np.float32(something * out[1])
        mean = something * _spread(out[1:], chances[1:], outcomes[1:])
        chances[1:] *= something
        return np.float32(mean)
    return _spread(out, chances, outcomes)


@njit(cache=True, error_model="numpy")
def _spread(out: Array, chances: Array, outcomes: Array) -> np.float32:
    """Read Q logits and Q outcomes. Returns their mean."""
    count = len(chances)
    top, total, mean = np.float32(-np.inf), np.float32(0), np.float32(0)
    for q in range(count):
        top = max(top, out[q])
    for q in range(count):
        chances[q], outcomes[q] = np.exp(out[q] - top), out[count + q]
        total += chances[q]
    for q in range(count):
        chances[q] /= total
        mean += chances[q] * outcomes[q]
    return mean


@njit(cache=True, error_model="numpy")
def unit(aim: Array, odds: Array, share: Array) -> float:
    """The mean square of what is aimed at `[M, Q]` where that is something, as `outcomes.unit`."""
    square = something = 0.0
    for m in range(len(share)):
        for q in range(aim.shape[1]):
            if aim[m, q] != 0:
                square += share[m] * odds[m, q] * aim[m, q] ** 2
                something += share[m] * odds[m, q]
    return max(square / something, float(TINY)) if something > 0 else 1.0


@njit(cache=True, error_model="numpy")
def miss_hurdle(
    out: Array, chances: Array, aim: Array, odds: Array, slopes: RiskSlopes, amount: float, share: float
) -> float:
    """How far chance and amounts of something are from those aimed at; `out` gives way to the loss's gradient."""
    something = far = square = 0.0
    for q in range(len(aim)):
        if aim[q] != 0:
            gap = out[1] - aim[q]
            something += odds[q]
            far += odds[q] * gap
            square += odds[q] * gap * gap
        else:
            odds[q] = 0  # what is left is how likely which amounts are
    logit = out[0]
    loss = max(logit, 0.0) - logit * something + np.log1p(np.exp(-abs(logit)))
    told = chances[1:].sum()
    out[0] = share * (told - something)
    if len(out) == 2:
        out[1] = share * far / amount
        return loss + square / (2 * amount)
    if something == 0:
        out[1:] = 0
        return loss
    odds /= np.float32(something)
    if told > 0:
        chances[1:] /= told
    else:
        _spread(out[1:], chances[1:], np.empty(len(chances) - 1, np.float32))
    weight = something / np.sqrt(amount)
    return loss + weight * miss_quantiles(out[1:], chances[1:], aim, odds, slopes, share * weight)


@njit(cache=True, error_model="numpy")
def miss_quantiles(out: Array, chances: Array, aim: Array, odds: Array, slopes: RiskSlopes, share: float) -> float:
    """How far a told distribution is from the aimed one, as in `outcomes.miss`; `out` gives way to its gradient."""
    count = len(chances)
    loss = mean = 0.0
    for q in range(count):
        far = within = pull = 0.0
        for j in range(len(aim)):
            gap = out[count + q] - aim[j]
            far += odds[j] * abs(gap)
            pull += odds[j] * np.sign(gap)
        for j in range(count):
            gap = out[count + q] - out[count + j]
            within += chances[j] * abs(gap)
            pull -= chances[j] * np.sign(gap)
        loss += chances[q] * (far - within / 2)
        mean += chances[q] * (far - within)
        slopes.probability[q], slopes.outcome[q] = far - within, pull
    for q in range(count):
        out[q] = share * chances[q] * (slopes.probability[q] - mean)
        out[count + q] = share * chances[q] * slopes.outcome[q]
    return loss
