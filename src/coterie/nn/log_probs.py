"""Log-probabilities and entropies of actions with their slopes, compiled: what all losses of distributions build on.

Every distribution has two kernels. The first finds log-probability and entropy of given actions from a network's
outputs; the second finds the slopes of a loss by those outputs, from its slopes by log-probability and entropy. Row m
of the outputs belongs to decision `rows[m]`. What the second needs of the first stays in scratch arrays `[M, …]`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.nn.launch import kernel

IMPOSSIBLE = -1e9  # a masked logit: finite, so that no 0·∞ arises in the entropy
LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0  # bounds of the logarithm of a squashed Gaussian's deviation
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)

# Choices ----------------------------------------------------------------------------------------------


@jit(forceinline=True)
def log_sum_exp(logits: Array, m: int, start: int, stop: int, mask: Array, r: int) -> tuple[Any, bool]:
    """The logarithm of the sum of exp(logit) over `logits [m, start:stop]`, and whether anything is legal.

    What `mask [r]` calls illegal counts as −1e9; a mask of width 0 allows everything.
    """
    masked, top, total = mask.shape[1] > 0, np.float32(-np.inf), np.float32(0)
    possible = not masked
    for j in range(start, stop):
        legal = not masked or mask[r, j]
        possible = possible or legal
        top = max(top, logits[m, j] if legal else np.float32(IMPOSSIBLE))
    for j in range(start, stop):
        legal = not masked or mask[r, j]
        total += math.exp((logits[m, j] if legal else np.float32(IMPOSSIBLE)) - top)
    return top + math.log(total), possible


@jit
def log_softmax(logits: Array, m: int, start: int, stop: int, mask: Array, r: int) -> None:
    """Turn `logits [m, start:stop]` into log-probabilities."""
    shift, _ = log_sum_exp(logits, m, start, stop, mask, r)
    for j in range(start, stop):
        legal = mask.shape[1] == 0 or mask[r, j]
        logits[m, j] = (logits[m, j] if legal else np.float32(IMPOSSIBLE)) - shift


@kernel
def choice_log_probs(
    m: int,
    out: Array,
    rows: Array,
    sizes: Array,
    action: Array,
    mask: Array,
    log_probs: Array,
    probability: Array,
    entropies: Array,
    log_prob: Array,
    entropy: Array,
) -> None:
    """Log-probability `[M]` of `action [R, K]` and entropy `[M]`, for logits `out [M, outputs]` of K choices.

    `mask [R, outputs]` says what is legal; one of width 0 allows everything. Where nothing is legal there is no choice:
    both are 0. Scratch: `log_probs` and `probability` `[M, outputs]`, `entropies [M, K]` of each choice.
    """
    r, start, masked, choice = rows[m], 0, mask.shape[1] > 0, False
    total, spread = np.float32(0), np.float32(0)
    for k in range(len(sizes)):
        stop, part = start + sizes[k], np.float32(0)
        shift, possible = log_sum_exp(out, m, start, stop, mask, r)
        choice = choice or possible
        for j in range(start, stop):
            found = (out[m, j] if not masked or mask[r, j] else np.float32(IMPOSSIBLE)) - shift
            share = math.exp(found) if possible else np.float32(0)
            log_probs[m, j], probability[m, j] = found, share
            part -= share * found
        total += log_probs[m, start + action[r, k]]
        entropies[m, k] = part
        spread += part
        start = stop
    log_prob[m] = total if choice else np.float32(0)
    entropy[m] = spread


@kernel
def choice_slopes(
    m: int,
    rows: Array,
    sizes: Array,
    action: Array,
    log_probs: Array,
    probability: Array,
    entropies: Array,
    by_log_prob: Array,
    by_entropy: Array,
    slopes: Array,
) -> None:
    """A loss's slopes `[M, outputs]` by logits, from those by log-probability and entropy `[M]`."""
    slope, entropy_slope, start = by_log_prob[m], by_entropy[m], 0
    ignored = slope == 0 and entropy_slope == 0  # padding may hold anything, and 0·∞ is no number
    for k in range(len(sizes)):
        stop, possible = start + sizes[k], False
        for j in range(start, stop):
            share = probability[m, j]
            possible = possible or share > 0
            found = share * (-entropy_slope * (log_probs[m, j] + entropies[m, k]) - slope)
            slopes[m, j] = np.float32(0) if ignored else found
        if possible and not ignored:
            slopes[m, start + action[rows[m], k]] += slope
        start = stop


# Bounded numbers --------------------------------------------------------------------------------------


@jit
def _digamma(x: float) -> float:
    """The derivative of log Γ for x ≥ 1: upwards by recurrence, then its asymptotic series."""
    total = 0.0
    while x < 6:
        total -= 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return total + math.log(x) - 0.5 / x - series


@jit
def _trigamma(x: float) -> float:
    """The second derivative of log Γ for x ≥ 1, likewise."""
    total = 0.0
    while x < 6:
        total += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
    return total + (1 + 0.5 / x + series) / x


@jit
def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@kernel
def beta_log_probs(
    m: int, out: Array, rows: Array, point: Array, log_range: float, scratch: Array, log_prob: Array, entropy: Array
) -> None:
    """The same for Beta distributions on (0, 1), whose parameters are 1 + softplus of `out [M, 2K]`.

    `point [R, K]` are the actions; `log_range` scales densities to the box. Scratch `[M, 2, 2K]`: derivatives of
    log-probability and entropy by outputs.
    """
    width = point.shape[1]
    total, spread = -log_range, log_range
    for k in range(width):
        x = float(point[rows[m], k])
        first, second = float(out[m, k]), float(out[m, width + k])
        a, b = 1 + _softplus(first), 1 + _softplus(second)
        of_a, of_b, of_both = _digamma(a), _digamma(b), _digamma(a + b)
        log_x, log_rest = math.log(x), math.log1p(-x)
        log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        total += (a - 1) * log_x + (b - 1) * log_rest - log_beta
        spread += log_beta - (a - 1) * of_a - (b - 1) * of_b + (a + b - 2) * of_both
        shared = (a + b - 2) * _trigamma(a + b)
        by_first, by_second = 1 / (1 + math.exp(-first)), 1 / (1 + math.exp(-second))
        scratch[m, 0, k] = (log_x - of_a + of_both) * by_first
        scratch[m, 0, width + k] = (log_rest - of_b + of_both) * by_second
        scratch[m, 1, k] = (shared - (a - 1) * _trigamma(a)) * by_first
        scratch[m, 1, width + k] = (shared - (b - 1) * _trigamma(b)) * by_second
    log_prob[m], entropy[m] = total, spread


@kernel
def squashed_log_probs(
    m: int,
    out: Array,
    rows: Array,
    point: Array,
    log_range: float,
    nodes: Array,
    weights: Array,
    scratch: Array,
    log_prob: Array,
    entropy: Array,
) -> None:
    """The same for x = (tanh z + 1)/2 with z normal: K means, then K logarithms of deviations in `out [M, 2K]`.

    The entropy's expectation E[log dx/dz] is a sum over `nodes` in units of the deviation (`SquashedGaussian`).
    """
    width = point.shape[1]
    total, spread = -log_range, log_range
    for k in range(width):
        x, mean, raw = float(point[rows[m], k]), float(out[m, k]), float(out[m, width + k])
        log_std = min(max(raw, LOG_STD_LOW), LOG_STD_HIGH)
        std, inside = math.exp(log_std), LOG_STD_LOW <= raw <= LOG_STD_HIGH
        far = (math.atanh(2 * x - 1) - mean) / std
        total -= 0.5 * far * far + log_std + HALF_LOG_2PI + math.log(2 * x * (1 - x))
        expected = pull = stretch = np.float32(0)
        for n in range(len(nodes)):
            z = np.float32(mean) + np.float32(std) * nodes[n]
            e = math.exp(-2 * abs(z))  # of tanh and of softplus(−2z) alike
            tangent = (1 - e) / (1 + e) if z >= 0 else (e - 1) / (1 + e)
            expected -= 2 * weights[n] * (abs(z) + math.log1p(e))
            pull -= 2 * weights[n] * tangent
            stretch -= 2 * weights[n] * tangent * nodes[n]
        spread += float(log_std + HALF_LOG_2PI + 0.5 + math.log(2) + expected)
        scratch[m, 0, k] = far / std
        scratch[m, 0, width + k] = far * far - 1 if inside else 0.0
        scratch[m, 1, k] = pull
        scratch[m, 1, width + k] = 1 + std * stretch if inside else 0.0
    log_prob[m], entropy[m] = total, spread


@kernel
def bounded_slopes(m: int, scratch: Array, by_log_prob: Array, by_entropy: Array, slopes: Array) -> None:
    """A loss's slopes `[M, 2K]` by outputs of either family, from those by log-probability and entropy `[M]`."""
    ignored = by_log_prob[m] == 0 and by_entropy[m] == 0
    for j in range(slopes.shape[1]):
        found = by_log_prob[m] * scratch[m, 0, j] + by_entropy[m] * scratch[m, 1, j]
        slopes[m, j] = np.float32(0) if ignored else found
