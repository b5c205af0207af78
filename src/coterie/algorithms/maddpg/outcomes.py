"""Outcome distributions of critics: how outputs are parsed, targets, the critic's loss and the actor's objective.

A critic predicts Q outcomes of a decision and their probabilities. The number of its outputs says how:

- 1: the mean;
- 2: a hurdle model (Cragg 1971): the logit of P(outcome ≠ 0), and the amount of a non-zero outcome;
- 2Q: Q logits and Q outcomes, a quantile function of Q steps whose heights and widths are both learned;
- 1 + 2Q: a hurdle model whose non-zero outcomes have a quantile function.

Each loss is written once. It replaces outputs by its slopes: `kernels.py` passes them to the compiled backward pass,
`maddpg.py` to autograd. All functions are compiled and work on the rows `[M, …]` of one parameter set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.group import RiskParameters
from coterie.core.types import Array
from coterie.preferences.risk_kernels import RiskSlopes, make_slopes, risk_value

STD_FLOOR = np.float32(0.02)  # of the mean deviation: no decision has more than 50 times the usual weight
TINY = np.float32(1e-30)  # added to divisors
SCALE_DECAY = 0.99  # per update, of the sums behind the running mean square of amounts


class Targets(NamedTuple):
    """The distributions that critics learn to predict."""

    outcome: Array  # [M, Q]
    probability: Array  # [M, Q]
    weight: Array  # [M]: of each decision in the mean; 0 where the decision does not count


class Scratch(NamedTuple):
    """Arrays to work in."""

    probability: Array  # [Q]: of one row
    outcome: Array  # [Q]: of one row
    target_probability: Array  # [Q]: of one row
    expected: Array  # [M]: means of the predicted distributions
    std: Array  # [M]: their standard deviations
    slopes: RiskSlopes  # of one row


@njit(cache=True, error_model="numpy")
def is_hurdle(outputs: int) -> bool:
    """Whether a critic with this many outputs is a hurdle model."""
    return outputs == 2 or (outputs > 1 and outputs % 2 == 1)


@njit(cache=True, error_model="numpy")
def count_outcomes(outputs: int) -> int:
    """The number of outcomes that a critic with this many outputs predicts; 0 is one of a hurdle model's."""
    return outputs // 2 + 1 if is_hurdle(outputs) else max(outputs // 2, 1)


@njit(cache=True, error_model="numpy")
def make_targets(rows: int, outputs: int) -> Targets:
    """Room for the targets of a critic with this many outputs."""
    shape = (rows, count_outcomes(outputs))
    return Targets(np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(rows, np.float32))


@njit(cache=True, error_model="numpy")
def make_scratch(rows: int, outputs: int) -> Scratch:
    """Room for a critic with this many outputs."""
    count = count_outcomes(outputs)
    return Scratch(
        np.empty(count, np.float32),
        np.empty(count, np.float32),
        np.empty(count, np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        make_slopes(count),
    )


# Outputs ----------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def parse_outputs(out: Array, probability: Array, outcome: Array) -> np.float32:
    """Write the distribution `[Q]` that a row of outputs describes; returns its mean."""
    count = len(probability)
    if count == 1:
        probability[0], outcome[0] = 1, out[0]
        return out[0]
    if is_hurdle(len(out)):
        nonzero = np.float32(1 / (1 + np.exp(-out[0])))
        probability[0], outcome[0] = 1 - nonzero, 0
        if count == 2:
            probability[1], outcome[1] = nonzero, out[1]
            return np.float32(nonzero * out[1])
        mean = nonzero * _parse_quantiles(out[1:], probability[1:], outcome[1:])
        probability[1:] *= nonzero
        return np.float32(mean)
    return _parse_quantiles(out, probability, outcome)


@njit(cache=True, error_model="numpy")
def _parse_quantiles(out: Array, probability: Array, outcome: Array) -> np.float32:
    """Parse Q logits and Q outcomes; returns their mean."""
    count = len(probability)
    top, total, mean = np.float32(-np.inf), np.float32(0), np.float32(0)
    for q in range(count):
        top = max(top, out[q])
    for q in range(count):
        probability[q], outcome[q] = np.exp(out[q] - top), out[count + q]
        total += probability[q]
    for q in range(count):
        probability[q] /= total
        mean += probability[q] * outcome[q]
    return mean


# Targets ----------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def keep_lower(out: Array, first: bool, targets: Targets, scratch: Scratch) -> None:
    """Write the distributions of a target critic `[M, …]` where their means are lower (Fujimoto et al. 2018, eq. 10).

    The first critic's distributions are written in any case.
    """
    for m in range(out.shape[0]):
        mean = parse_outputs(out[m], scratch.probability, scratch.outcome)
        if first or np.isnan(mean) or mean < scratch.expected[m]:
            scratch.expected[m] = mean
            targets.outcome[m], targets.probability[m] = scratch.outcome, scratch.probability


@njit(cache=True, error_model="numpy")
def bootstrap(reward: Array, discount: Array, targets: Targets) -> None:
    """Turn next outcomes Z′ into targets r + γ Z′, with `reward` and `discount` `[M]`; without a discount r is certain.

    Lowe et al. 2017, eq. 6.
    """
    for m in range(len(reward)):
        continues = discount[m] > 0
        for q in range(targets.outcome.shape[1]):
            later = discount[m] * targets.outcome[m, q] if continues else np.float32(0)
            targets.outcome[m, q] = reward[m] + later
            if not continues:
                targets.probability[m, q] = 1 if q == 0 else 0


# The critic's loss ------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def critic_loss(out: Array, targets: Targets, scale: float, scratch: Scratch) -> tuple[float, float, float]:
    """The weighted loss of a critic's outputs `[M, …]`, which are replaced by its slopes.

    A mean has half the squared error, a hurdle model `_hurdle_loss` with amounts in units of `scale`, a quantile
    function `_quantile_loss`. Returns (loss, mean value, mean absolute error of the value).
    """
    loss = mean = error = 0.0
    hurdle = is_hurdle(out.shape[1])
    for m in range(len(targets.weight)):
        weight, target = targets.weight[m], np.float32(0)
        expected = parse_outputs(out[m], scratch.probability, scratch.outcome)
        for q in range(targets.outcome.shape[1]):
            target += targets.probability[m, q] * targets.outcome[m, q]
        gap = expected - target
        mean += weight * expected
        error += weight * abs(gap)
        if out.shape[1] == 1:
            loss += weight * gap * gap / 2
            out[m, 0] = weight * gap
        elif hurdle:
            scratch.target_probability[:] = targets.probability[m]  # it is changed below, and twins share targets
            loss += weight * _hurdle_loss(out[m], targets.outcome[m], scale, weight, scratch)
        else:
            loss += weight * _quantile_loss(
                out[m], scratch.probability, targets.outcome[m], targets.probability[m], weight, scratch.slopes
            )
    return loss, mean, error


@njit(cache=True, error_model="numpy")
def mean_square(targets: Targets, running: Array) -> float:
    """The running mean square of non-zero target outcomes *before* these targets, which are added to `running`.

    `running [2]` holds decayed sums of squares and of weights; 0 at first, where the targets' own mean square is
    returned. Later it is independent of them: a batch of large amounts that was divided by its own mean square would
    weigh less than one of small amounts, and predicted amounts would be too low.
    """
    square = nonzero = 0.0
    weight, probability, outcome = targets.weight, targets.probability, targets.outcome
    for m in range(len(weight)):
        for q in range(outcome.shape[1]):
            if outcome[m, q] != 0:
                square += weight[m] * probability[m, q] * outcome[m, q] ** 2
                nonzero += weight[m] * probability[m, q]
    before = running.copy() if running[1] > 0 else np.array([square, nonzero])
    if nonzero > 0:
        running[0] = SCALE_DECAY * running[0] + square
        running[1] = SCALE_DECAY * running[1] + nonzero
    return max(before[0] / before[1], float(TINY)) if before[1] > 0 else 1.0


@njit(cache=True, error_model="numpy")
def _hurdle_loss(out: Array, outcome: Array, scale: float, weight: float, scratch: Scratch) -> float:
    """Cross-entropy of P(outcome ≠ 0), plus the loss of non-zero outcomes; writes weighted slopes into `out`.

    One amount has half the squared error in units of the running mean square `scale`: both terms are likelihoods, so
    that a probability of one in a thousand is learned as well, in proportion, as one in two (Cragg 1971). Several
    amounts have `_quantile_loss` in units of the root of `scale`. `scratch` holds the parsed outputs and target
    probabilities.
    """
    probability, target = scratch.probability, scratch.target_probability
    nonzero = linear = square = 0.0
    for q in range(len(outcome)):
        if outcome[q] != 0:
            gap = out[1] - outcome[q]
            nonzero += target[q]
            linear += target[q] * gap
            square += target[q] * gap * gap
        else:
            target[q] = 0  # what is left are the probabilities of non-zero outcomes
    logit = out[0]
    loss = max(logit, 0.0) - logit * nonzero + np.log1p(np.exp(-abs(logit)))
    predicted = probability[1:].sum()
    out[0] = weight * (predicted - nonzero)
    if len(out) == 2:
        out[1] = weight * linear / scale
        return loss + square / (2 * scale)
    if nonzero == 0:
        out[1:] = 0
        return loss
    target /= np.float32(nonzero)
    if predicted > 0:
        probability[1:] /= predicted
    else:
        _parse_quantiles(out[1:], probability[1:], np.empty(len(probability) - 1, np.float32))
    factor = nonzero / np.sqrt(scale)
    return loss + factor * _quantile_loss(out[1:], probability[1:], outcome, target, weight * factor, scratch.slopes)


@njit(cache=True, error_model="numpy")
def _quantile_loss(
    out: Array, probability: Array, target_outcome: Array, target_probability: Array, weight: float, slopes: RiskSlopes
) -> float:
    """The energy distance of a predicted distribution X and its target Y; writes weighted slopes into `out`.

    E|X − Y| − ½ E|X − X′|, up to a constant of Y: twice the loss of quantile regression (Dabney et al. 2018, eq. 8),
    integrated over all levels instead of summed over fixed ones. So the levels between which a quantile function is
    flat are learned, too, as in Yang et al. 2019.
    """
    count = len(probability)
    loss = mean = 0.0
    for q in range(count):
        across = within = pull = 0.0
        for j in range(len(target_outcome)):
            gap = out[count + q] - target_outcome[j]
            across += target_probability[j] * abs(gap)
            pull += target_probability[j] * np.sign(gap)
        for j in range(count):
            gap = out[count + q] - out[count + j]
            within += probability[j] * abs(gap)
            pull -= probability[j] * np.sign(gap)
        loss += probability[q] * (across - within / 2)
        mean += probability[q] * (across - within)
        slopes.probability[q], slopes.outcome[q] = across - within, pull
    for q in range(count):
        out[q] = weight * probability[q] * (slopes.probability[q] - mean)
        out[count + q] = weight * probability[q] * slopes.outcome[q]
    return loss


# The actor's objective --------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def actor_objective(risk: RiskParameters, out: Array, weight: Array, scale_by_std: bool, scratch: Scratch) -> float:
    """The weighted mean risk value of a critic's outputs `[M, …]`, which are replaced by the slopes of its negative.

    With `scale_by_std`, slopes are divided by the outcome's standard deviation, so that decisions with little at stake
    shape the policy as well as those with much. The factors are positive constants, so the best action stays the best.
    """
    mean, usual = 0.0, np.float32(0)
    for m in range(len(weight)):
        mean += weight[m] * _risk_slopes(risk, out[m], weight[m], m, scratch)
    if scale_by_std:
        for m in range(len(weight)):
            usual += weight[m] * scratch.std[m]
        for m in range(len(weight)):
            factor = (usual + TINY) / (scratch.std[m] + STD_FLOOR * usual + TINY)
            for k in range(out.shape[1]):
                out[m, k] *= factor
    return mean


@njit(cache=True, error_model="numpy")
def risk_values(risk: RiskParameters, out: Array, values: Array, scratch: Scratch) -> None:
    """Write the risk values `[M]` of a critic's outputs `[M, …]`."""
    for m in range(len(values)):
        parse_outputs(out[m], scratch.probability, scratch.outcome)
        values[m] = risk_value(risk, scratch.probability, scratch.outcome, scratch.slopes)


@njit(cache=True, error_model="numpy")
def _risk_slopes(risk: RiskParameters, out: Array, weight: float, m: int, scratch: Scratch) -> float:
    """The risk value of row m; replaces its outputs by −weight times the slopes, and writes its standard deviation."""
    probability, slopes, count = scratch.probability, scratch.slopes, len(scratch.probability)
    expected = parse_outputs(out, probability, scratch.outcome)
    value = risk_value(risk, probability, scratch.outcome, slopes)
    mean = variance = 0.0
    for q in range(count):
        mean += probability[q] * slopes.probability[q]
        variance += probability[q] * (scratch.outcome[q] - expected) ** 2
    first = 1 if is_hurdle(len(out)) else 0  # outcome 0 of a hurdle model has the logit out[0]
    if first:
        out[0] = -weight * probability[0] * (mean - slopes.probability[0])
        mean = (mean - probability[0] * slopes.probability[0]) / max(probability[1:].sum(), TINY)
    amounts = count - first
    for q in range(amounts):
        if amounts > 1:
            out[first + q] = -weight * probability[first + q] * (slopes.probability[first + q] - mean)
        out[len(out) - amounts + q] = -weight * slopes.outcome[first + q]
    scratch.std[m] = np.sqrt(variance)
    return value
