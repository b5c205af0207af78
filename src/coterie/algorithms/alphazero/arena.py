"""Matches between networks of one search player: the gate, and Elo ratings against past selves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.core.game import Game
from coterie.core.types import Array, CoterieError, State
from coterie.core.validation import at_least
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.policy import draw
from coterie.policies.search.search import RootNoiseSettings, Search


def check_games(games: int) -> None:
    """Refuse a number of games that two seats cannot share."""
    at_least("games", games, 2)
    if games % 2:
        raise ValueError(f"games must be even, half of them from each seat; got {games}")


class Match(NamedTuple):
    """Results of the first of two players."""

    wins: int
    draws: int
    losses: int

    @property
    def score(self) -> float:
        """Its share of the points."""
        return (self.wins + self.draws / 2) / sum(self)


def play_match(
    game: Game, players: Sequence[Search], simulations: int, games: int, random: np.random.Generator, drawn: int = 4
) -> Match:
    """Play games between two searches, half of them from each seat, all at once.

    The first `drawn` moves of a game are drawn from the search's policy, so that games differ; later ones are the best.
    """
    positions = np.tile(game.start, (games, 1))
    seat = np.arange(games) % 2  # the first player's seat
    result = np.zeros(games, np.float32)
    going = np.ones(games, bool)
    trees = [player.trees(games, simulations) for player in players]
    for move in range(game.max_moves):
        if not going.any():
            break
        legal = game.legal(positions)
        uniform, turn = random.random(games), positions[:, 0] == seat
        for who, player in enumerate(players):
            rows = np.flatnonzero(going & (turn == (who == 0)))
            if not len(rows):
                continue
            budget = np.zeros(games, np.int64)
            budget[rows] = np.where(legal[rows].sum(axis=1) > 1, simulations, 0)
            roots = player.roots(legal, budget, None, RootNoiseSettings())
            found = player.run(trees[who], roots, positions, rows, random)
            actions = found.action[rows]
            if move < drawn:
                actions = draw(found.policy[rows], uniform[rows], 1.0)
            moved = positions[rows]
            game.apply(moved, actions)
            positions[rows] = moved
            over, payoffs = game.outcome(moved)
            result[rows[over]] = payoffs[over, seat[rows[over]]]
            going[rows[over]] = False
    if going.any():
        raise CoterieError(f"game '{game.name}': a match game did not end within max_moves={game.max_moves}")
    return Match(int((result > 0).sum()), int((result == 0).sum()), int((result < 0).sum()))


@dataclass(frozen=True)
class EloSettings:
    """Ratings against past selves."""

    every: int = 20  # iterations between ratings; each adds the present network to the past selves
    games: int = 40  # against each past self that is met
    opponents: int = 3  # latest past selves that are met
    simulations: int = 16  # of both players

    def __post_init__(self) -> None:
        for name in ("every", "opponents", "simulations"):
            at_least(name, getattr(self, name), 1)
        check_games(self.games)


class EloPool:
    """Past selves and their ratings; the untrained network has 0."""

    def __init__(self, settings: EloSettings, first: Array) -> None:
        self.settings = settings
        self.weights, self.ratings = [first], [0.0]

    def rate(
        self,
        game: Game,
        players: Sequence[Search],
        now: PositionNetwork,
        past: PositionNetwork,
        random: np.random.Generator,
    ) -> float:
        """Rate the present network by matches against the latest past selves, and add it to them.

        `players` search with `now` and with `past`, which takes each past self's weights in turn. A score s of n games
        means a difference of 400 log₁₀((s + ½) / (n − s + ½)) points, which stays finite.
        """
        s, found = self.settings, []
        for weights, rating in list(zip(self.weights, self.ratings, strict=True))[-s.opponents :]:
            past.flat.array = weights[None]
            match = play_match(game, players, s.simulations, s.games, random)
            points = match.score * s.games
            found.append(rating + 400 * np.log10((points + 0.5) / (s.games - points + 0.5)))
        self.weights = [*self.weights, now.flat.array[0].copy()][-s.opponents :]
        self.ratings = [*self.ratings, float(np.mean(found))][-s.opponents :]
        return self.ratings[-1]

    def state(self) -> State:
        return {"weights": np.stack(self.weights), "ratings": list(self.ratings)}

    def load(self, state: State) -> None:
        self.weights, self.ratings = list(state["weights"].copy()), list(state["ratings"])
