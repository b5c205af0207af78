"""Rates runs: lets a judge compare their episodes in pairs, and fits Bradley–Terry scores to the verdicts.

A session can stop at any time and continue later: every rating is stored when it is given, and no pair is judged twice
(`preferences/ratings.py`). Judges are in `judges.py`, episodes in `episodes.py`, tables and JSON in `show.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from coterie.core import seeding
from coterie.core.lookup import Trust
from coterie.core.types import Array, CoterieError
from coterie.preferences import bradley_terry
from coterie.preferences.ratings import (
    Pair,
    Rating,
    RatingSession,
    RatingsFile,
    episodes_file,
    read_episodes,
    write_episodes,
)
from coterie.studies.rate.episodes import Episode, ViewOptions, check_same_world, gather, play, rated_group
from coterie.training.table import load


class Judge(Protocol):
    """Compares two episodes."""

    view_options: ViewOptions  # the forms of an episode that it needs

    def compare(self, first: Episode, second: Episode) -> float | None:
        """1: the first is better, 0: the second, 0.5: a tie; None: skipped. Raises `StopRating` to end the session."""
        ...


@runtime_checkable
class HasBeginning(Protocol):
    """A judge that shows progress and therefore needs the number of pairs."""

    def begin(self, done: int, total: int) -> None:
        """Called before the first pair of a session: how many were rated earlier, and how many there are in all."""
        ...


class StopRating(Exception):
    """The judge ends the session."""


# Pairs ------------------------------------------------------------------------------------------------


def max_pairs(session: RatingSession) -> int:
    """The number of pairs of episodes in a session."""
    return math.comb(len(session.runs), 2) * session.episodes**2


def pairs(runs: int, episodes: int, seed: int) -> Iterator[Pair]:
    """All pairs of episodes of different runs, ordered so that every prefix covers runs and episodes evenly.

    Episodes that start from the same seed come first. Which one of a pair is shown first is random.
    """
    random = seeding.generator(seed, "rating pairs")
    meetings = list(itertools.combinations(range(runs), 2))
    order = random.permutation(episodes)
    for turn in range(episodes * episodes):
        one, other = order[turn % episodes], order[(turn + turn // episodes) % episodes]
        for at in random.permutation(len(meetings)):
            left, right = (meetings[at][0], int(one)), (meetings[at][1], int(other))
            yield Pair(left, right) if random.random() < 0.5 else Pair(right, left)


# Rating -----------------------------------------------------------------------------------------------


def rate(session: RatingSession, judge: Judge, path: Path, wanted: int, trust: Trust = "signed") -> list[Rating]:
    """Compare pairs until the ratings file holds `wanted` ratings, or the judge stops; returns all ratings."""
    if len(session.runs) < 2:
        raise CoterieError("rating compares runs: name at least two")
    if len({Path(run).resolve() for run in session.runs}) < len(session.runs):
        raise CoterieError("a run cannot be compared with itself; name each run once")
    tables = [load(run, session.checkpoint, trust=trust) for run in session.runs]
    check_same_world(tables, session.runs)
    groups = [rated_group(table, session.group) for table in tables]
    file = RatingsFile(path, session)
    episodes = [
        play(table, group, session.episodes, session.seed, judge.view_options, not session.stochastic)
        for table, group in zip(tables, groups, strict=True)
    ]
    widths = {(e.observation.shape[1], e.action.shape[1]) for of_run in episodes for e in of_run}
    if len(widths) > 1:
        names = ", ".join(dict.fromkeys(groups))
        raise CoterieError(f"groups {names} differ in their observations or actions; choose one --group")
    _keep_episodes(path, episodes, new=not file.ratings)
    if isinstance(judge, HasBeginning) and len(file.ratings) < min(wanted, max_pairs(session)):
        judge.begin(len(file.ratings), min(wanted, max_pairs(session)))
    done = {frozenset((rating.pair.first, rating.pair.second)) for rating in file.ratings}
    for pair in pairs(len(session.runs), session.episodes, session.seed):
        if len(file.ratings) >= wanted:
            break
        if frozenset((pair.first, pair.second)) in done:
            continue
        (i, e), (j, f) = pair.first, pair.second
        try:
            score = judge.compare(episodes[i][e], episodes[j][f])
        except StopRating:
            break
        file.add(Rating(pair, score))
    return file.ratings


def _keep_episodes(ratings: Path, episodes: Sequence[Sequence[Episode]], new: bool) -> None:
    """Store the episodes of a ratings file; refuse others than those that its ratings are about."""
    path, library = episodes_file(ratings), gather(episodes)
    if new or not path.is_file():
        write_episodes(path, library)
    elif not read_episodes(path).equals(library):
        raise CoterieError(f"the runs no longer play the episodes that '{ratings}' rates; choose another --ratings")


# Scores -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """One run's score and its counts of pairs."""

    run: str
    strength: float  # Bradley-Terry, in log odds; all sum to 0
    low: float  # of the 95% interval
    high: float
    wins: int
    ties: int
    losses: int

    @property
    def pairs(self) -> int:
        return self.wins + self.ties + self.losses


def standings(runs: Sequence[str], ratings: Sequence[Rating]) -> list[Standing]:
    """The runs, highest score first; skipped pairs do not count."""
    _, counts = count_wins(len(runs), ratings)
    fitted = bradley_terry.fit_games(as_games(ratings), len(runs))
    low, high = bradley_terry.intervals(fitted)
    found = [
        Standing(run, float(fitted.strengths[i]), float(low[i]), float(high[i]), *map(int, counts[i]))
        for i, run in enumerate(runs)
    ]
    return sorted(found, key=lambda standing: -standing.strength)


def as_games(ratings: Sequence[Rating]) -> bradley_terry.Games:
    """The rated pairs as games between runs, whose draws are episodes."""
    rated = [(rating.pair, rating.score) for rating in ratings if rating.score is not None]
    sides = np.array([(pair.first, pair.second) for pair, _ in rated], np.int64).reshape(-1, 2, 2)  # (run, episode)
    _, draws = np.unique(sides.reshape(-1, 2), axis=0, return_inverse=True)
    return bradley_terry.Games(sides[..., 0], draws.reshape(-1, 2), np.array([score for _, score in rated], float))


def count_wins(runs: int, ratings: Sequence[Rating]) -> tuple[Array, Array]:
    """Wins `[K, K]`, ties as halves, and the numbers of each run's pairs won, tied and lost, `[K, 3]`."""
    wins, counts = np.zeros((runs, runs)), np.zeros((runs, 3), np.int64)
    for rating in ratings:
        if rating.score is None:
            continue
        i, j = rating.pair.first[0], rating.pair.second[0]
        wins[i, j] += rating.score
        wins[j, i] += 1 - rating.score
        column = 0 if rating.score > 0.5 else 1 if rating.score == 0.5 else 2
        counts[i, column] += 1
        counts[j, 2 - column] += 1
    return wins, counts
