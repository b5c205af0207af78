"""Runs rated by comparing their episodes in pairs: who meets whom, what was said, and the scores that follow.

A *contest* is what is compared (runs, episodes, group, instruction, judge); its ratings are lines of a JSONL file,
each written when it is given, so that one may stop at any time and go on later: nothing is asked twice. Beside it lies
an `.npz` with what the episodes' agents saw and did, from which `roles/rated.py` learns a reward. Judges are in
`rating_judges.py`, scores in `bradley_terry.py`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie import bradley_terry, streams
from coterie.rating_episodes import (
    Episode,
    Looks,
    judged_group,
    play,
    read_library,
    same_library,
    same_world,
    write_library,
)
from coterie.table import load
from coterie.types import Array, CoterieError

SCHEMA = 1
INSTRUCTION = "Which episode shows the better behaviour?"


@dataclass(frozen=True)
class Contest:
    """What is compared: the first line of a ratings file."""

    runs: tuple[str, ...]
    judge: str
    instruction: str = INSTRUCTION
    group: str | None = None  # whose behaviour; None: the first that learned
    episodes: int = 10  # of each run
    seed: int = 0
    checkpoint: str = "best"
    sample: bool = False  # actions are drawn
    schema: int = SCHEMA


@dataclass(frozen=True)
class Pair:
    """Two episodes of different runs, the first of which is shown first."""

    first: tuple[int, int]  # (run, episode)
    second: tuple[int, int]


@dataclass(frozen=True)
class Rating:
    """What a judge said of a pair."""

    pair: Pair
    score: float | None  # 1: the first is better, 0: the second, 0.5: a tie; None: skipped


class Judge(Protocol):
    """Who compares episodes."""

    looks: Looks  # what it has to see of them

    def compare(self, first: Episode, second: Episode) -> float | None:
        """1: the first is better, 0: the second, 0.5: a tie; None: it does not say. Stops by raising `Left`."""
        ...


class Left(Exception):
    """The judge has had enough."""


# Pairs ------------------------------------------------------------------------------------------------


def pairs(runs: int, episodes: int, seed: int) -> Iterator[Pair]:
    """All pairs of episodes of different runs; every beginning of the list treats runs and episodes evenly.

    First the episodes that began alike meet, then the others. Which one comes first is drawn.
    """
    random = streams.generator(seed, "rating pairs")
    meetings = list(itertools.combinations(range(runs), 2))
    order = random.permutation(episodes)
    for turn in range(episodes * episodes):
        one, other = order[turn % episodes], order[(turn + turn // episodes) % episodes]
        for at in random.permutation(len(meetings)):
            left, right = (meetings[at][0], int(one)), (meetings[at][1], int(other))
            yield Pair(left, right) if random.random() < 0.5 else Pair(right, left)


# The ratings file -------------------------------------------------------------------------------------


def episodes_file(ratings: Path) -> Path:
    """Where the episodes of a ratings file lie."""
    return ratings.with_suffix(".npz")


def read(path: Path) -> tuple[Contest, list[Rating]]:
    """A contest and what was said so far; a line that was cut off while it was written is left out."""
    if not path.is_file():
        raise CoterieError(f"no ratings file '{path}'; 'coterie rate RUN RUN --ratings {path}' writes one")
    lines = path.read_text().split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise CoterieError(f"'{path}', line {number}: not readable as JSON") from None
    if not rows or rows[0].get("schema") != SCHEMA:
        raise CoterieError(f"'{path}' is no ratings file of 'coterie rate'")
    head = rows[0] | {"runs": tuple(rows[0]["runs"])}
    given = [Rating(Pair(tuple(r["first"]), tuple(r["second"])), r["score"]) for r in rows[1:]]
    return Contest(**head), given


class Ledger:
    """A ratings file that grows."""

    def __init__(self, path: Path, contest: Contest) -> None:
        self.path, self.given = path, list[Rating]()
        if path.exists():
            before, self.given = read(path)
            for name, now in asdict(contest).items():
                then = asdict(before)[name]
                if then != now:
                    held = f"'{path}' holds ratings with {name} {_shown(then)}, not {_shown(now)}"
                    raise CoterieError(f"{held}; choose another --ratings")
            self._write("w", asdict(contest), *map(_line, self.given))  # without a line that was cut off
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write("w", asdict(contest))

    def add(self, rating: Rating) -> None:
        """Keep a rating for good."""
        self.given.append(rating)
        self._write("a", _line(rating))

    def _write(self, mode: str, *rows: dict[str, Any]) -> None:
        with self.path.open(mode) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _line(rating: Rating) -> dict[str, Any]:
    return {"first": rating.pair.first, "second": rating.pair.second, "score": rating.score}


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else repr(value)


# Rating -----------------------------------------------------------------------------------------------


def rate(contest: Contest, judge: Judge, ledger: Path, wanted: int) -> list[Rating]:
    """Have so many pairs compared, counting those that the file already holds."""
    if len(contest.runs) < 2:
        raise CoterieError("rating compares runs: name at least two")
    if len(set(contest.runs)) < len(contest.runs):
        raise CoterieError("a run cannot be compared with itself; name each once")
    tables = [load(run, contest.checkpoint) for run in contest.runs]
    same_world(tables, contest.runs)
    groups = [judged_group(table, contest.group) for table in tables]
    held = Ledger(ledger, contest)
    films = [
        play(table, group, contest.episodes, contest.seed, judge.looks, not contest.sample)
        for table, group in zip(tables, groups, strict=True)
    ]
    widths = {(e.observation.shape[1], e.action.shape[1]) for mine in films for e in mine}
    if len(widths) > 1:
        raise CoterieError(f"groups {', '.join(dict.fromkeys(groups))} see or do different things; choose one --group")
    beside = episodes_file(ledger)
    if held.given and beside.is_file() and not same_library(read_library(beside), films):
        raise CoterieError(f"the runs no longer play the episodes that '{ledger}' rates; choose another --ratings")
    write_library(beside, films)
    done = {frozenset((rating.pair.first, rating.pair.second)) for rating in held.given}
    for pair in pairs(len(contest.runs), contest.episodes, contest.seed):
        if len(held.given) >= wanted:
            break
        if frozenset((pair.first, pair.second)) in done:
            continue
        (i, e), (j, f) = pair.first, pair.second
        try:
            score = judge.compare(films[i][e], films[j][f])
        except Left:
            break
        held.add(Rating(pair, score))
    return held.given


# Scores -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """One run's place."""

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


def standings(runs: Sequence[str], given: Sequence[Rating]) -> list[Standing]:
    """The runs in the order of their scores; skipped pairs count for nobody."""
    score, counts = tally(len(runs), given)
    found = bradley_terry.fit(score)
    low, high = bradley_terry.intervals(found)
    made = [
        Standing(run, float(found.strengths[i]), float(low[i]), float(high[i]), *map(int, counts[i]))
        for i, run in enumerate(runs)
    ]
    return sorted(made, key=lambda standing: -standing.strength)


def tally(runs: int, given: Sequence[Rating]) -> tuple[Array, Array]:
    """Wins `[K, K]`, ties as halves, and how many of each run's pairs were won, tied and lost, `[K, 3]`."""
    wins, counts = np.zeros((runs, runs)), np.zeros((runs, 3), np.int64)
    for rating in given:
        if rating.score is None:
            continue
        i, j = rating.pair.first[0], rating.pair.second[0]
        wins[i, j] += rating.score
        wins[j, i] += 1 - rating.score
        column = 0 if rating.score > 0.5 else 1 if rating.score == 0.5 else 2
        counts[i, column] += 1
        counts[j, 2 - column] += 1
    return wins, counts
