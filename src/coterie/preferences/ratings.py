"""The files of `coterie rate`: ratings as JSON lines, and the rated episodes as an `.npz` archive next to them.

The first line of a ratings file describes the session (runs, judge, instruction, episodes); each further line is one
rated pair. Lines are appended one by one, so a session can stop at any time and continue later. `studies/rate` writes
these files; `preferences/reward_model.py` fits a reward to them.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.files import replacing
from coterie.core.types import Array, CoterieError

SCHEMA = 1
INSTRUCTION = "Which episode shows the better behaviour?"
STORED_NAMES = {"stochastic": "sample"}  # field -> key in the file, where they differ


@dataclass(frozen=True)
class RatingSession:
    """Settings of a comparison, its judge included: the first line of a ratings file."""

    runs: tuple[str, ...]
    judge: str
    instruction: str = INSTRUCTION
    group: str | None = None  # whose behaviour; None: the first group that learned
    episodes: int = 10  # of each run
    seed: int = 0
    checkpoint: str = "best"
    stochastic: bool = False  # actions are sampled
    moments: int | None = None  # most moments of an episode described in words; None: the judge reads no words
    template: str | None = None  # prompt template of a model, with a digest of its text; None: the judge is no model
    schema: int = SCHEMA


@dataclass(frozen=True)
class Pair:
    """Two episodes of different runs; `first` is shown first."""

    first: tuple[int, int]  # (run, episode)
    second: tuple[int, int]


@dataclass(frozen=True)
class Rating:
    """A judge's verdict on a pair."""

    pair: Pair
    score: float | None  # 1: the first is better, 0: the second, 0.5: a tie; None: skipped


@dataclass(frozen=True)
class EpisodeLibrary:
    """Episodes of several runs, run by run."""

    observation: Array  # [S, D]
    action: Array  # [S, K]
    starts: Array  # [E + 1] int: rows of episode e are starts[e] to starts[e + 1]
    returns: Array  # [E]

    def equals(self, other: EpisodeLibrary) -> bool:
        """Whether both hold the same episodes."""
        return all(np.array_equal(array, vars(other)[name]) for name, array in vars(self).items())


# Ratings ----------------------------------------------------------------------------------------------


def read_ratings(path: Path) -> tuple[RatingSession, list[Rating]]:
    """Read a session and its ratings so far; a last line that was cut off while it was written is ignored."""
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
                raise CoterieError(f"'{path}', line {number}: not valid JSON") from None
    if not rows or not isinstance(rows[0], dict) or rows[0].get("schema") != SCHEMA:
        raise CoterieError(f"'{path}' is not a ratings file of 'coterie rate'")
    try:
        session = _parse_session(rows[0])
    except (KeyError, TypeError):
        raise CoterieError(f"'{path}', line 1: not the description of a session that 'coterie rate' writes") from None
    ratings = [_parse_rating(row, session, f"'{path}', line {number}") for number, row in enumerate(rows[1:], 2)]
    return session, ratings


def check_name(path: Path) -> None:
    """Refuse a path that cannot be a ratings file."""
    if path.suffix == ".npz":
        raise CoterieError(f"'{path}': .npz is the ending of the episodes file; name a .jsonl file")
    if path.is_dir():
        raise CoterieError(f"'{path}' is a directory; name a file in it, such as '{path / 'ratings.jsonl'}'")


def _parse_session(row: dict[str, Any]) -> RatingSession:
    fields = {key: field for field, key in STORED_NAMES.items()}
    return RatingSession(**{fields.get(key, key): value for key, value in row.items()} | {"runs": tuple(row["runs"])})


def _parse_rating(row: Any, session: RatingSession, where: str) -> Rating:
    """One line; its runs and episodes must belong to the session."""
    try:
        ends = [(int(run), int(episode)) for run, episode in (row["first"], row["second"])]
        inside = all(0 <= run < len(session.runs) and 0 <= n < session.episodes for run, n in ends)
        if inside and (row["score"] is None or 0 <= row["score"] <= 1):
            return Rating(Pair(*ends), row["score"])
    except (KeyError, TypeError, ValueError):
        pass  # refused below, like every other line that is not a rating
    raise CoterieError(f"{where}: not a rating of a pair of this session")


class RatingsFile:
    """A ratings file that grows; it continues an existing file of the same session."""

    def __init__(self, path: Path, session: RatingSession) -> None:
        self.path, self.ratings = path, list[Rating]()
        if not path.exists():
            check_name(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite(session)
            return
        before, self.ratings = read_ratings(path)
        for name, now in asdict(session).items():
            then = asdict(before)[name]
            if then != now and not (name == "runs" and same_paths(then, now)):
                found = f"'{path}' holds ratings with {name} {_as_text(then)}, not {_as_text(now)}"
                raise CoterieError(f"{found}; choose another --ratings")
        if not path.read_bytes().endswith(b"\n"):  # the last line was cut off
            self._rewrite(before)

    def add(self, rating: Rating) -> None:
        """Append a rating and sync it to disk."""
        with self.path.open("a") as file:
            file.write(_as_line(_rating_row(rating)))
            file.flush()
            os.fsync(file.fileno())
        self.ratings.append(rating)

    def _rewrite(self, session: RatingSession) -> None:
        header = {STORED_NAMES.get(name, name): value for name, value in asdict(session).items()}
        rows = [header, *map(_rating_row, self.ratings)]
        with replacing(self.path) as file:
            file.write("".join(map(_as_line, rows)).encode())


def same_paths(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists name the same runs, however their paths are written."""
    return [Path(run).resolve() for run in one] == [Path(run).resolve() for run in other]


def _rating_row(rating: Rating) -> dict[str, Any]:
    return {"first": rating.pair.first, "second": rating.pair.second, "score": rating.score}


def _as_line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _as_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else repr(value)


# Episodes ---------------------------------------------------------------------------------------------


def episodes_file(ratings: Path) -> Path:
    """The episodes of a ratings file: its whole name and `.npz`, so that no two ratings files share one."""
    return ratings.with_name(f"{ratings.name}.npz")


def write_episodes(path: Path, library: EpisodeLibrary) -> None:
    """Write all episodes to one compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(file, **vars(library))


def read_episodes(path: Path) -> EpisodeLibrary:
    """Read the episodes that `write_episodes` wrote."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return EpisodeLibrary(stored["observation"], stored["action"], stored["starts"], stored["returns"])
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError):
        cure = "remove it, and 'coterie rate' plays its episodes again"
        raise CoterieError(f"'{path}' is cut off or holds no episodes; {cure}") from None
