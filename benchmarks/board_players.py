"""What the benchmarks of board-game players share: moves of searches and networks, and games against alpha-beta."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.core.alphabeta import best_actions
from coterie.core.game import Game
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.search import RootNoiseSettings, Search

SEED = 20_000  # of openings, positions and games; no training uses it
Player = Callable[[np.ndarray], np.ndarray]  # positions [N, S] -> actions [N]


def search_moves(search: Search, positions: np.ndarray, simulations: int) -> np.ndarray:
    """The search's greedy move in each position."""
    legal, budget = search.game.legal(positions), np.full(len(positions), simulations)
    roots = search.roots(legal, budget, None, RootNoiseSettings())
    trees, random = search.trees(len(positions), simulations), np.random.default_rng(0)
    return search.run(trees, roots, positions, np.arange(len(positions)), random).action


def network_moves(network: PositionNetwork, positions: np.ndarray) -> np.ndarray:
    """The network's most probable legal move in each position."""
    logits, _ = network.evaluate(network.game.observe(positions))
    return np.where(network.game.legal(positions), logits, -np.inf).argmax(axis=1)


def openings(game: Game, games: int, moves: int) -> np.ndarray:
    """Positions `[games, S]` after random moves; none is over."""
    random = np.random.default_rng(SEED)
    positions = np.tile(game.start, (games, 1))
    for _ in range(moves):
        legal = game.legal(positions)
        game.apply(positions, (random.random(legal.shape) * legal).argmax(axis=1))
    if game.outcome(positions)[0].any():
        raise ValueError(f"a game is over after {moves} random moves; choose fewer")
    return positions


def against_alphabeta(game: Game, player: Player, starts: np.ndarray, depth: int, seat: int) -> dict[str, float]:
    """Results of a player in one seat, all games at once; alpha-beta draws between moves of equal value."""
    random, positions = np.random.default_rng(SEED + 1 + seat), starts.copy()
    result, going = np.zeros(len(starts)), np.ones(len(starts), bool)
    while going.any():
        rows = np.flatnonzero(going)
        moved = positions[rows]
        mine, actions = moved[:, 0] == seat, np.zeros(len(rows), np.int64)
        if mine.any():
            actions[mine] = player(moved[mine])
        if (~mine).any():
            theirs = moved[~mine]
            actions[~mine] = best_actions(game, theirs, depth, game.legal(theirs), random.random(len(theirs)))
        game.apply(moved, actions)
        positions[rows] = moved
        over, payoffs = game.outcome(moved)
        result[rows[over]] = payoffs[over, seat]
        going[rows[over]] = False
    counts = {"won": int((result > 0).sum()), "drawn": int((result == 0).sum()), "lost": int((result < 0).sum())}
    return counts | {"different last positions": len(np.unique(positions, axis=0))}
