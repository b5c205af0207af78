"""Alpha-beta search of games with compiled rules, to a depth; random among moves of equal value.

Values are those of the player to move. At the horizon the game's `estimate` counts (between −1 and 1; 0 without one). A
game that is over counts its payoff and, on top, one point for a win or minus one for a loss, less a millionth for every
move until then: a win outweighs every estimate, a sooner win a later one, and a later loss a sooner one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.core.game import Game, compile_estimate
from coterie.core.jit import jit
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
    """The moves from the position that is searched to the one that is looked at, by ply."""

    stack: Array  # [depth + 1, S] positions
    masks: Array  # [depth + 1, K] actions not tried yet
    moves: Array  # [depth + 1] the action that is being tried
    best: Array  # [depth + 1] the best value so far
    low: Array  # [depth + 1] values up to this one do not matter
    high: Array  # [depth + 1] the other player avoids positions with this value or more
    history: Array  # [K] how often an action has cut off, weighted by the depth below it


@jit
def _search_all(rules: Any, estimate: Any, positions: Array, depth: int, allowed: Array, values: Array) -> None:
    num_actions = allowed.shape[1]
    search = _Search(
        np.empty((depth + 1, positions.shape[1]), np.int64),
        np.empty((depth + 1, num_actions), np.bool_),
        np.zeros(depth + 1, np.int64),
        np.empty(depth + 1),
        np.empty(depth + 1),
        np.empty(depth + 1),
        np.zeros(num_actions, np.int64),
    )
    for n in range(len(positions)):
        search.stack[0] = positions[n]
        search.masks[0] = allowed[n]
        search.history[:] = 0
        _search_one(rules, estimate, search, depth, values[n])
        for action in range(num_actions):
            if values[n, action] < search.best[0]:
                values[n, action] = -np.inf


@jit
def _search_one(rules: Any, estimate: Any, s: _Search, depth: int, values: Array) -> None:
    """Negamax with a stack of its own (Numba crashes on cached recursive functions that call rules)."""
    payoffs = np.zeros(2, np.float32)
    ply = 0
    s.best[0], s.low[0], s.high[0] = -np.inf, -np.inf, np.inf
    while True:
        action = _next_action(s.masks[ply], s.history) if s.best[ply] < s.high[ply] else -1
        if action >= 0:
            s.moves[ply] = action
            child = s.stack[ply + 1]
            child[:] = s.stack[ply]
            rules.apply(child, action)
            same = child[0] == s.stack[ply, 0]  # the player moves again
            if rules.outcome(child, payoffs):
                payoff = np.float64(payoffs[s.stack[ply, 0]])
                value = payoff + np.sign(payoff) * (1.0 - 1e-6 * (ply + 1))
            elif ply + 1 == depth:
                value = estimate(child) if same else -estimate(child)
            else:
                low = max(s.low[ply], s.best[ply])
                if ply == 0:  # values above the bound are exact: this one keeps those that are equal to the best
                    low = np.nextafter(low, -np.inf)
                ply += 1
                s.best[ply] = -np.inf
                s.low[ply], s.high[ply] = (low, s.high[ply - 1]) if same else (-s.high[ply - 1], -low)
                s.masks[ply] = False
                rules.legal(child, s.masks[ply])
                continue
        elif ply == 0:
            return
        else:  # all actions tried, or cut off: the value counts for the move that led here
            ply -= 1
            value = s.best[ply + 1] if s.stack[ply + 1, 0] == s.stack[ply, 0] else -s.best[ply + 1]
        if ply == 0 and value >= s.best[0]:
            values[s.moves[0]] = value
        s.best[ply] = max(s.best[ply], value)
        if s.best[ply] >= s.high[ply]:
            s.history[s.moves[ply]] += (depth - ply) ** 2


@jit
def _next_action(mask: Array, history: Array) -> int:
    """Take the action that has cut off most out of the mask; −1 if none is left."""
    found = -1
    for action in range(len(mask)):
        if mask[action] and (found < 0 or history[action] > history[found]):
            found = action
    if found >= 0:
        mask[found] = False
    return found
