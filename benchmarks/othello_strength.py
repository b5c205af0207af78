"""How strong an Othello player is: games against alpha-beta, from both seats.

    python benchmarks/othello_strength.py RUN [--checkpoint NAME] [--simulations 256] [--games 100] [--depth 4]

Every game begins with random moves (`--opening`), and alpha-beta draws between moves of equal value, so that games
differ; both seats play the same openings. Beside the search stand the network alone, the search without training, and
search by random games.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from board_players import Player, against_alphabeta, network_moves, openings, search_moves

from coterie import load
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.policy import SearchPolicy, make_search


def players_of(policy: SearchPolicy, simulations: int) -> dict[str, Player]:
    """The trained player, and what it is compared with."""
    assert policy.network is not None
    game, settings = policy.game, policy.settings
    networks = {
        "search": policy.network,
        "untrained search": PositionNetwork(settings.network, game, 1),
        "search by random games": None,
    }
    found: dict[str, Player] = {"network alone": partial(network_moves, policy.network)}
    for name, network in networks.items():
        search = make_search(settings, game, network, simulations)
        found[name] = partial(search_moves, search, simulations=simulations)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--simulations", type=int, default=256, help="per move; training has 64")
    parser.add_argument("--games", type=int, default=100, help="from each seat")
    parser.add_argument("--opening", type=int, default=4, help="random moves at the start of a game")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = load(args.run, args.checkpoint)
    policy = table.groups[0].policy
    assert isinstance(policy, SearchPolicy)
    starts = openings(policy.game, args.games, args.opening)
    given = {"simulations": args.simulations, "games": args.games, "opening": args.opening, "depth": args.depth}
    result = {"run": args.run, "env_steps": table.env_steps} | given
    for name, player in players_of(policy, args.simulations).items():
        for seat, where in enumerate(("first", "second")):
            result[f"{name}, {where}"] = against_alphabeta(policy.game, player, starts, args.depth, seat)
            print(f"{name}, {where}: {result[f'{name}, {where}']}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
