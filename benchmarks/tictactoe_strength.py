"""How strong a tic-tac-toe player is, exactly: its move in every position, and every line an opponent can play.

    python benchmarks/tictactoe_strength.py RUN [--simulations 32] [--out FILE.json]

A move is optimal if it keeps the position's value under best play. Beside the search stand the network alone, the same
search without training, random games in place of a network, and random play.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from board_players import network_moves, search_moves

from coterie import load
from coterie.core.game import Game
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.policy import SearchPolicy, make_search


def all_positions(game: Game) -> list[tuple[int, ...]]:
    """Every position in which somebody moves, reached by any play."""
    found, ahead = set(), [tuple(game.start.tolist())]
    while ahead:
        position = ahead.pop()
        if position in found or game.outcome(np.array([position]))[0][0]:
            continue
        found.add(position)
        ahead += [child for _, child in children(game, position)]
    return sorted(found)


def children(game: Game, position: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Legal actions and where they lead."""
    actions = np.flatnonzero(game.legal(np.array([position]))[0])
    ends = np.tile(np.array(position), (len(actions), 1))
    game.apply(ends, actions)
    return [(int(a), tuple(end.tolist())) for a, end in zip(actions, ends, strict=True)]


def solver(game: Game) -> Callable[[tuple[int, ...]], float]:
    """A function from a position to player 0's payoff under best play: plain minimax, written apart from the search."""

    @cache
    def value(position: tuple[int, ...]) -> float:
        over, payoffs = game.outcome(np.array([position]))
        if over[0]:
            return float(payoffs[0, 0])
        results = [value(end) for _, end in children(game, position)]
        return max(results) if position[0] == 0 else min(results)

    return value


def best_moves(game: Game, positions: list[tuple[int, ...]]) -> np.ndarray:
    """Which actions are optimal in each position, `[P, K]` bool."""
    value, optimal = solver(game), np.zeros((len(positions), game.actions), bool)
    for i, position in enumerate(positions):
        for action, end in children(game, position):
            optimal[i, action] = value(end) == value(position)
    return optimal


def losing_lines(game: Game, moves: dict[tuple[int, ...], int], seat: int) -> tuple[int, int]:
    """Games against every line of an opponent: (all, lost)."""
    played, lost, ahead = 0, 0, [tuple(game.start.tolist())]
    while ahead:
        position = ahead.pop()
        over, payoffs = game.outcome(np.array([position]))
        if over[0]:
            played, lost = played + 1, lost + int(payoffs[0, seat] < 0)
            continue
        ends = children(game, position)
        ahead += [end for a, end in ends if position[0] != seat or a == moves[position]]
    return played, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--simulations", type=int, default=32)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    policy = load(args.run).groups[0].policy
    assert isinstance(policy, SearchPolicy)
    assert policy.network is not None
    game, settings = policy.game, policy.settings
    listed = all_positions(game)
    positions, optimal = np.array(listed), best_moves(game, listed)
    untrained = PositionNetwork(settings.network, game, 1)
    players = {
        "search": search_moves(
            make_search(settings, game, policy.network, args.simulations), positions, args.simulations
        ),
        "network alone": network_moves(policy.network, positions),
        "untrained search": search_moves(
            make_search(settings, game, untrained, args.simulations), positions, args.simulations
        ),
        "search by random games": search_moves(
            make_search(settings, game, None, args.simulations), positions, args.simulations
        ),
    }
    shares = {name: float(optimal[np.arange(len(positions)), moves].mean()) for name, moves in players.items()}
    shares["random"] = float((optimal.sum(1) / game.legal(positions).sum(1)).mean())
    by_position = dict(zip(listed, players["search"].tolist(), strict=True))
    lines = {f"as player_{seat}": losing_lines(game, by_position, seat) for seat in (0, 1)}
    result = {
        "run": args.run,
        "simulations": args.simulations,
        "positions": len(listed),
        "optimal": shares,
        "lines": lines,
    }
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
