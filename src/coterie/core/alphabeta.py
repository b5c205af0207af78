"""Alpha-beta search of games with compiled rules, to a depth; random among moves of equal value.

Values are those of the player to move. At the horizon the game's `estimate` counts (between −1 and 1; 0 without one). A
game that is over counts its payoff and, on top, one point for a win or minus one for a loss, less a millionth for every
move until then: a win outweighs every estimate, a sooner win a later one, and a later loss a sooner one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from coterie.core.game import Game, compile_estimate
from coterie.core.types import Array


def best_actions(game: Game, positions: Array, depth: int, allowed: Array, uniform: Array | None) -> Array:
    """The best actions `[N]` after looking `depth` moves ahead.

    `allowed` `[N, K]` limits the first move to some of the legal actions; 0 is returned where it allows none. `uniform`
    `[N]` in [0, 1) chooses among actions of equal value; None takes the first of them.
    """
    values = action_values(game, positions, depth, allowed)
    best = (values == values.max(axis=1, keepdims=True)) & allowed
    rank = np.zeros(len(values)) if uniform is None else uniform * best.sum(axis=1)
    return np.asarray((best.cumsum(axis=1) > np.floor(rank)[:, None]).argmax(axis=1))


def action_values(game: Game, positions: Array, depth: int, allowed: Array) -> Array:
    """Values `[N, K]` of the actions: exact for the best ones; −inf where not allowed or proved to be worse."""
    if game.rules is None:
        raise ValueError(f"alpha-beta search needs a game with compiled rules; '{game.name}' has none")
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    depth = min(depth, game.max_moves)
    values = np.full((len(positions), game.actions), -np.inf)
    estimate = _UNKNOWN if game.estimate is None else game.estimate
    _search_all(game.rules, estimate, np.ascontiguousarray(positions), depth, np.ascontiguousarray(allowed), values)
    return values


def _unknown(position: Array) -> float:
    return 0.0


_UNKNOWN = compile_estimate(_unknown)


class _Search(NamedTuple):
    """What one search needs besides the rules."""

    depth: int
    stack: Array  # [depth + 1, S] the positions on the way
    masks: Array  # [depth + 1, K] actions not tried yet
    history: Array  # [K] how often an action has cut off, weighted by the depth below it
    payoffs: Array  # [2]


@njit(cache=True)
def _search_all(rules: Any, estimate: Any, positions: Array, depth: int, allowed: Array, values: Array) -> None:
    num_actions = allowed.shape[1]
    search = _Search(
        depth,
        np.empty((depth + 1, positions.shape[1]), np.int64),
        np.empty((depth + 1, num_actions), np.bool_),
        np.zeros(num_actions, np.int64),
        np.zeros(2, np.float32),
    )
    for n in range(len(positions)):
        search.history[:] = 0
        search.stack[0] = positions[n]
        search.masks[0] = allowed[n]
        best = -np.inf
        for _ in range(num_actions):
            action = _next_action(search.masks[0], search.history)
            if action < 0:
                break
            # values above the lower bound are exact: a bound just below the best one keeps those that are equal to it
            value = _after(rules, estimate, search, 0, action, np.nextafter(best, -np.inf), np.inf)
            if value >= best:
                best = value
                values[n, action] = value
        for action in range(num_actions):
            if values[n, action] < best:
                values[n, action] = -np.inf


@njit(cache=True)
def _next_action(mask: Array, history: Array) -> int:
    """Take the action that has cut off most out of the mask; −1 if none is left."""
    found = -1
    for action in range(len(mask)):
        if mask[action] and (found < 0 or history[action] > history[found]):
            found = action
    if found >= 0:
        mask[found] = False
    return found


@njit(cache=True)
def _after(rules: Any, estimate: Any, search: _Search, ply: int, action: int, low: float, high: float) -> float:
    """The value of an action for the player who takes it, exact if it lies between `low` and `high`."""
    player, child = search.stack[ply, 0], search.stack[ply + 1]
    child[:] = search.stack[ply]
    rules.apply(child, action)
    ply += 1
    if rules.outcome(child, search.payoffs):
        payoff = np.float64(search.payoffs[player])
        return payoff + np.sign(payoff) * (1.0 - 1e-6 * ply)
    same = child[0] == player  # who moves again
    if ply == search.depth:
        guess = estimate(child)
        return guess if same else -guess
    if not same:
        low, high = -high, -low
    mask = search.masks[ply]
    mask[:] = False
    rules.legal(child, mask)
    best = -np.inf
    for _ in range(len(mask)):
        reply = _next_action(mask, search.history)
        if reply < 0:
            break
        best = max(best, _after(rules, estimate, search, ply, reply, max(low, best), high))
        if best >= high:
            search.history[reply] += (search.depth - ply) ** 2
            break
    return best if same else -best
