"""How strong a Connect Four player is, by an exact solver and by alpha-beta.

    python benchmarks/connect_four_strength.py RUN [--checkpoint NAME] [--positions 1000] [--games 100]

Positions with 16 stones or more are those of random play with another seed than training uses, in which some move keeps
the value (win, draw, loss) and some move loses it. A move is good if it keeps it. Beside the search stand the network
alone, the search without training, search by random games, and random play. Games against alpha-beta of depth 4 differ
because it draws between moves of equal value; games that begin with two random moves differ more, and some of them are
lost from the start.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
from board_players import SEED, against_alphabeta, network_moves, openings, search_moves

from coterie import load
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.policy import SearchPolicy, make_search
from coterie.worlds.boards.connect_four_solver import Solver, generate_positions


def held_out(count: int, solver: Solver) -> tuple[np.ndarray, np.ndarray]:
    """Positions `[count, S]` in which a move can go wrong, and which moves keep the value `[count, 7]`."""
    positions = generate_positions(20 * count, (16, 36), SEED)
    chosen, keep = [], []
    for start in range(0, len(positions), 256):
        part = positions[start : start + 256]
        good = solver.keeping_moves(part)
        wrong = (good.sum(axis=1) < (solver.move_values(part) > -100).sum(axis=1)).nonzero()[0]
        chosen.append(part[wrong])
        keep.append(good[wrong])
        if sum(map(len, chosen)) >= count:
            break
    return np.concatenate(chosen)[:count], np.concatenate(keep)[:count]


def strength(policy: SearchPolicy, positions: np.ndarray, keep: np.ndarray, simulations: int) -> dict[str, float]:
    """Shares of good moves."""
    assert policy.network is not None
    game, settings, rows = policy.game, policy.settings, np.arange(len(positions))
    untrained = PositionNetwork(settings.network, game, 1)
    found = {
        "search": search_moves(make_search(settings, game, policy.network, simulations), positions, simulations),
        "network alone": network_moves(policy.network, positions),
        "untrained search": search_moves(make_search(settings, game, untrained, simulations), positions, simulations),
        "search by random games": search_moves(make_search(settings, game, None, simulations), positions, simulations),
    }
    shares = {name: float(keep[rows, moves].mean()) for name, moves in found.items()}
    return shares | {"random": float((keep.sum(axis=1) / game.legal(positions).sum(axis=1)).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = load(args.run, args.checkpoint)
    policy = table.groups[0].policy
    assert isinstance(policy, SearchPolicy)
    solver = Solver()
    begin = time.perf_counter()
    positions, keep = held_out(args.positions, solver)
    result = {"run": args.run, "env_steps": table.env_steps, "simulations": args.simulations, "positions": len(keep)}
    result["solver_seconds"] = round(time.perf_counter() - begin, 1)
    result["keeps the value"] = strength(policy, positions, keep, args.simulations)
    search = make_search(policy.settings, policy.game, policy.network, args.simulations)
    player = partial(search_moves, search, simulations=args.simulations)
    for opening in (0, 2):
        starts = openings(policy.game, args.games, opening)
        for seat, name in enumerate(("first", "second")):
            title = f"against alpha-beta of depth {args.depth}, {name}, after {opening} random moves"
            result[title] = against_alphabeta(policy.game, player, starts, args.depth, seat)
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
