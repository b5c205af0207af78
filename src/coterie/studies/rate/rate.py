"""Runs rated by comparing their episodes in pairs: who meets whom, what was said, and the scores that follow.

A *contest* is what is compared (runs, episodes, group, instruction, judge); its ratings are lines of a JSONL file,
each written when it is given, so that one may stop at any time and go on later: nothing is asked twice. Beside it lies
an `.npz` with what the episodes' agents saw and did, from which `roles/rated.py` learns a reward. Judges are in
`rating_judges.py`, scores in `bradley_terry.py`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie.core import seeding
from coterie.core.types import Array, CoterieError
from coterie.preferences import bradley_terry
from coterie.studies.rate.episodes import (
    Episode,
    ViewOptions,
    judged_group,
    play,
    read_library,
    same_library,
    same_world,
    write_library,
    write_whole,
)
from coterie.training.table import load

SCHEMA = 1
INSTRUCTION = "Which episode shows the better behaviour?"


@dataclass(frozen=True)
class RatingSession:
    """What is compared: the first line of a ratings file."""

    runs: tuple[str, ...]
    judge: str
    instruction: str = INSTRUCTION
    group: str | None = None  # whose behaviour; None: the first that learned
    episodes: int = 10  # of each run
    seed: int = 0
    checkpoint: str = "best"
    sample: bool = False  # actions are drawn
    moments: int | None = None  # told of an episode at most; None: the judge is told nothing
    template: str | None = None  # of the question to a model, with a digest of its text; None: the judge is no model
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

    looks: ViewOptions  # what it has to see of them

    def compare(self, first: Episode, second: Episode) -> float | None:
        """1: the first is better, 0: the second, 0.5: a tie; None: it does not say. Stops by raising `StopRating`."""
        ...


class StopRating(Exception):
    """The judge has had enough."""


# Pairs ------------------------------------------------------------------------------------------------


def most_pairs(contest: RatingSession) -> int:
    """How many pairs of episodes there are at all."""
    return math.comb(len(contest.runs), 2) * contest.episodes**2


def pairs(runs: int, episodes: int, seed: int) -> Iterator[Pair]:
    """All pairs of episodes of different runs; every beginning of the list treats runs and episodes evenly.

    First the episodes that began alike meet, then the others. Which one comes first is drawn.
    """
    random = seeding.generator(seed, "rating pairs")
    meetings = list(itertools.combinations(range(runs), 2))
    order = random.permutation(episodes)
    for turn in range(episodes * episodes):
        one, other = order[turn % episodes], order[(turn + turn // episodes) % episodes]
        for at in random.permutation(len(meetings)):
            left, right = (meetings[at][0], int(one)), (meetings[at][1], int(other))
            yield Pair(left, right) if random.random() < 0.5 else Pair(right, left)


# The ratings file -------------------------------------------------------------------------------------


def episodes_file(ratings: Path) -> Path:
    """Where the episodes of a ratings file lie: the whole name goes on, so that no two files share one."""
    return ratings.with_name(f"{ratings.name}.npz")


def read(path: Path) -> tuple[RatingSession, list[Rating]]:
    """A contest and what was said so far; a line that was cut off while it was written is left out."""
    check_name(path)
    if not path.is_file():
        raise CoterieError(f"no ratings file '{path}'; 'coterie rate RUN RUN --ratings {path}' writes one")
    lines = path.read_text(errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise CoterieError(f"'{path}', line {number}: not readable as JSON") from None
    if not rows or not isinstance(rows[0], dict) or rows[0].get("schema") != SCHEMA:
        raise CoterieError(f"'{path}' is no ratings file of 'coterie rate'")
    try:
        contest = RatingSession(**rows[0] | {"runs": tuple(rows[0]["runs"])})
    except (KeyError, TypeError):
        raise CoterieError(f"'{path}', line 1: does not say what was compared, as 'coterie rate' writes it") from None
    return contest, [_rating(row, contest, f"'{path}', line {number}") for number, row in enumerate(rows[1:], 2)]


def check_name(path: Path) -> None:
    """Refuse what cannot be a ratings file."""
    if path.suffix == ".npz":
        raise CoterieError(f"'{path}': .npz is for the episodes beside the ratings; name a .jsonl file")
    if path.is_dir():
        raise CoterieError(f"'{path}' is a folder; name a file in it, such as '{path / 'ratings.jsonl'}'")


def _rating(row: Any, contest: RatingSession, where: str) -> Rating:
    """One line; what stands in it must be in the contest."""
    try:
        ends = [(int(run), int(episode)) for run, episode in (row["first"], row["second"])]
        inside = all(0 <= run < len(contest.runs) and 0 <= n < contest.episodes for run, n in ends)
        if inside and (row["score"] is None or 0 <= row["score"] <= 1):
            return Rating(Pair(*ends), row["score"])
    except (KeyError, TypeError, ValueError):
        pass  # said below, like all that is no rating
    raise CoterieError(f"{where}: no rating of a pair of this contest")


class Ledger:
    """A ratings file that grows."""

    def __init__(self, path: Path, contest: RatingSession) -> None:
        self.path, self.given = path, list[Rating]()
        if not path.exists():
            check_name(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite(contest)
            return
        before, self.given = read(path)
        for name, now in asdict(contest).items():
            then = asdict(before)[name]
            if then != now and not (name == "runs" and same_places(then, now)):
                held = f"'{path}' holds ratings with {name} {_shown(then)}, not {_shown(now)}"
                raise CoterieError(f"{held}; choose another --ratings")
        if not path.read_bytes().endswith(b"\n"):  # the last line was cut off
            self._rewrite(before)

    def add(self, rating: Rating) -> None:
        """Keep a rating for good."""
        with self.path.open("a") as file:
            file.write(_text(_line(rating)))
            file.flush()
            os.fsync(file.fileno())
        self.given.append(rating)

    def _rewrite(self, contest: RatingSession) -> None:
        """The whole file at once: whoever is interrupted here leaves the old one as it was."""
        rows = [asdict(contest), *map(_line, self.given)]
        write_whole(self.path, "".join(map(_text, rows)).encode())


def same_places(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether these are the same runs, however their paths are written."""
    return [Path(run).resolve() for run in one] == [Path(run).resolve() for run in other]


def _line(rating: Rating) -> dict[str, Any]:
    return {"first": rating.pair.first, "second": rating.pair.second, "score": rating.score}


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else repr(value)


# Rating -----------------------------------------------------------------------------------------------


def rate(contest: RatingSession, judge: Judge, ledger: Path, wanted: int) -> list[Rating]:
    """Have so many pairs compared, counting those that the file already holds."""
    if len(contest.runs) < 2:
        raise CoterieError("rating compares runs: name at least two")
    if len({Path(run).resolve() for run in contest.runs}) < len(contest.runs):
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
    if not held.given or not beside.is_file():
        write_library(beside, films)
    elif not same_library(read_library(beside), films):
        raise CoterieError(f"the runs no longer play the episodes that '{ledger}' rates; choose another --ratings")
    done = {frozenset((rating.pair.first, rating.pair.second)) for rating in held.given}
    for pair in pairs(len(contest.runs), contest.episodes, contest.seed):
        if len(held.given) >= wanted:
            break
        if frozenset((pair.first, pair.second)) in done:
            continue
        (i, e), (j, f) = pair.first, pair.second
        try:
            score = judge.compare(films[i][e], films[j][f])
        except StopRating:
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
