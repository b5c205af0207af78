"""DQN's values, losses and slopes, compiled: the one place where they are written.

Member m of transition t is row `places[t, m]` of the network's outputs. Those are action values; of a dueling network
(`start` = 1) a state's value, then one number for each action.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.nn.launch import kernel

Float32 = Any  # a scalar of compiled code
NAMES = ("loss", "q_mean", "td_error", "margin_loss")  # what `terms` holds, in this order


@jit(forceinline=True)
def action_value(out: Array, place: int, action: int, start: int) -> Float32:
    """An action's value from a row of outputs (Wang et al. 2016, eq. 9, when dueling)."""
    if start == 0:
        return out[place, action]
    mean = np.float32(0)
    for j in range(1, out.shape[1]):
        mean += out[place, j]
    return out[place, 0] + out[place, 1 + action] - mean / np.float32(out.shape[1] - 1)


@kernel
def next_values(
    t: int,
    chooser: Array,
    judge: Array,
    places: Array,
    next_mask: Array,
    next_active: Array,
    start: int,
    values: Array,
) -> None:
    """Each member's value `[T, M]` by `judge` of the legal action that is best by `chooser`; 0 without a next value.

    Both are the target network's outputs (Mnih et al. 2015, algorithm 1), or the network chooses (van Hasselt et al.
    2016, eq. 4).
    """
    for m in range(places.shape[1]):
        place, best = places[t, m], -1
        for j in range(chooser.shape[1] - start):
            if next_mask[t, m, j] and (best < 0 or chooser[place, start + j] > chooser[place, start + best]):
                best = j
        values[t, m] = np.float32(0)
        if next_active[t, m]:
            values[t, m] = action_value(judge, place, max(best, 0), start)


@kernel
def chosen_values(t: int, out: Array, places: Array, action: Array, active: Array, start: int, values: Array) -> None:
    """Each member's value `[T, M]` of its action; 0 for members that took none."""
    for m in range(places.shape[1]):
        values[t, m] = np.float32(0)
        if active[t, m]:
            values[t, m] = action_value(out, places[t, m], action[t, m], start)


@jit(forceinline=True)
def td_loss(
    value: Float32, target: Float32, weight: Float32, count: Float32, delta: Float32
) -> tuple[Float32, Float32, Float32]:
    """Huber loss of one temporal-difference error: (error, loss, slope of the weighted mean loss).

    Errors beyond `delta` count linearly, which is Mnih et al. 2015's clipping of the error. The slope is that of the
    mean over `count` transitions with importance weights; the loss is the transition's own, without them.
    """
    error = np.float32(value - target)
    size, clipped = abs(error), float(error)  # NaN stays NaN
    if error > delta:
        clipped = delta
    elif error < -delta:
        clipped = -delta
    return error, abs(clipped) * (size - 0.5 * abs(clipped)), np.float32(weight * clipped / count)


@kernel
def td_losses(
    t: int,
    value: Array,
    total: Array,
    reward: Array,
    discount: Array,
    weight: Array,
    count: int,
    delta: float,
    error: Array,
    slopes: Array,
    terms: Array,
) -> None:
    """`td_loss` of values `[T]` against targets r + γ · total; writes errors, slopes `[T]` and terms `[T, 4]`.

    `count` transitions of each parameter set make a mean.
    """
    target, per_mean = reward[t], np.float32(count)
    if discount[t] > 0:  # the row after an end may hold anything
        target += discount[t] * total[t]
    error[t], loss, slopes[t] = td_loss(value[t], target, weight[t], per_mean, delta)
    terms[t, 0] = weight[t] * loss / per_mean
    terms[t, 1] = value[t] / per_mean
    terms[t, 2] = abs(error[t]) / per_mean
    terms[t, 3] = 0


@kernel
def value_slopes(
    t: int, places: Array, action: Array, active: Array, by_value: Array, start: int, slopes: Array
) -> None:
    """Slopes by outputs, from those by each member's value of its action `by_value [T, M]`."""
    actions = slopes.shape[1] - start
    for m in range(places.shape[1]):
        place, slope = places[t, m], by_value[t, m] if active[t, m] else np.float32(0)
        if start == 1:
            slopes[place, 0] = slope
        for j in range(actions):
            slopes[place, start + j] = -slope / np.float32(actions) if start == 1 else np.float32(0)
        slopes[place, start + action[t, m]] += slope


@kernel
def margin_losses(
    t: int,
    out: Array,
    places: Array,
    active: Array,
    advised: Array,
    legal: Array,
    weight: Array,
    count: int,
    margin: float,
    factor: float,
    start: int,
    slopes: Array,
    terms: Array,
) -> None:
    """Add the large-margin loss of advised actions (Hester et al. 2018, J_E), `factor` times, to slopes and terms.

    J_E = max_a [Q(s, a) + margin · 1(a ≠ advised)] − Q(s, advised), over legal actions: nobody learns the values of
    others. Its slope is 1 for the action that comes too close and −1 for the advised one, which cancel where these are
    the same. Both add up to 0, so the value of a dueling network's state has none.
    """
    share = weight[t] * np.float32(factor) / np.float32(count)
    for m in range(places.shape[1]):
        place, best = places[t, m], advised[t, m]
        if best >= 0 and active[t, m]:
            own = action_value(out, place, best, start)
            close, top = best, own
            for j in range(out.shape[1] - start):
                found = np.float32(action_value(out, place, j, start) + np.float32(margin))
                if j != best and legal[t, m, j] and found > top:
                    close, top = j, found
            terms[t, 3] += weight[t] * np.float32(top - own) / np.float32(count)
            if close != best:
                slopes[place, start + close] += share
                slopes[place, start + best] -= share


@kernel
def add_up(k: int, terms: Array, sums: Array) -> None:
    """Add the terms `[R, 4]` to `sums [4]`, in the order of rows."""
    for i in range(len(terms)):
        sums[k] += terms[i, k]
