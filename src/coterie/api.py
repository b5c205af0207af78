"""The Python interface: train, sweep, resume and load runs, play them against each other, compare them, report on them.

An experiment is a name, a file, or a dict with the settings that a file would hold. Results have `to_pandas`, which
needs pandas, and `to_dict`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config.schema import ConfigError, parse_overrides
from coterie.runs.data_frames import data_frame
from coterie.runs.interrupt import interruptible
from coterie.runs.run import Run
from coterie.studies import sweep as sweeps
from coterie.studies.compare import compare as comparing
from coterie.studies.compare import show as show_comparison
from coterie.studies.compare.runs import find_runs, gather, read
from coterie.studies.match import match as matches
from coterie.studies.match import show as show_match
from coterie.studies.report import report as reports
from coterie.training import clone as cloning
from coterie.training import start
from coterie.training import table as tables
from coterie.training.jobs import refuse_second_import
from coterie.training.table import Table

__all__ = [
    "ComparisonResult",
    "MatchResult",
    "Table",
    "clone",
    "compare",
    "load",
    "match",
    "report",
    "resume",
    "sweep",
    "train",
]

SIMPLE = re.compile(r"[\w./-]+")  # a string that needs no quotes
Experiment = str | Path | Mapping[str, Any]  # a name, a file, or settings
Overrides = list[str] | str | Mapping[str, Any] | None  # ["seed=1"], "seed=1" or {"seed": 1}
RunLike = str | Path | Run


def train(
    experiment: Experiment, overrides: Overrides = None, out: str | Path | None = None, quiet: bool = False
) -> Run:
    """Train an experiment, by name, file or dict, and write a run: what `coterie train` does.

    `overrides` are settings as on the command line: `["seed=1", "train.total_steps=10000"]`, a single `"seed=1"`, or
    `{"seed": 1, "train.total_steps": 10000}`.
    """
    refuse_second_import()
    return start.train(experiment, _words(overrides), out, quiet, reports.write_report)


def sweep(
    experiment: Experiment,
    overrides: Overrides = None,
    out: str | Path | None = None,
    jobs: int = 1,
    quiet: bool = True,
) -> list[Run]:
    """Train one run for each combination of `["seed=0,1", "groups.agent.learner.learning_rate=1e-3,3e-4"]`.

    In a dict, a list holds the values of a setting: `{"seed": [0, 1], "train.total_steps": 10000}`. This is what
    `coterie train -m` does: with `out`, finished runs stay and stopped ones are resumed; `jobs` runs are trained at a
    time, each in its own process, which imports a script again: call this below `if __name__ == "__main__":`. Returns
    the runs in the order of the combinations.
    """
    refuse_second_import()
    planned = sweeps.plan_sweep(experiment, _words(overrides, swept=True), out)
    with interruptible() as interrupted:
        found = dict(sweeps.run_sweep(experiment, planned, jobs, quiet, interrupted))
    return [found[number] for number in sorted(found)]


def clone(
    experiment: str,
    demonstrations: Sequence[str | Path],
    overrides: Overrides = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Run:
    """Train an experiment's policies to imitate demonstrations, and write a run: what `coterie clone` does."""
    refuse_second_import()
    return cloning.clone(experiment, demonstrations, _words(overrides), out, quiet, reports.write_report)


def resume(path: str | Path, overrides: Overrides = None, quiet: bool = False) -> bool:
    """Continue a run from its newest intact checkpoint; False when it had already finished."""
    refuse_second_import()
    return start.resume(path, _words(overrides), quiet, reports.write_report)


def load(path: str | Path, checkpoint: str = "best", overrides: Overrides = None, policy: str | None = None) -> Table:
    """Load the table of a run. A group whose policy is overridden with another one starts untrained.

    Overrides change the world and who plays in it; settings of training are refused. `policy` seats somebody else in
    the groups that learned: `teacher`, the group's own advisor, or a policy that needs no training, such as `random`.
    """
    return tables.load(path, checkpoint, _words(overrides), policy)


def _words(overrides: Overrides, swept: bool = False) -> list[str]:
    """Overrides as on the command line; `swept`: a list in a dict holds several values."""
    if not isinstance(overrides, Mapping):
        given: Any = [overrides] if isinstance(overrides, str) else overrides or []
        if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
            raise ConfigError(f"overrides: expected texts such as 'seed=1', or a dict, got {overrides!r}")
        return list(given)

    words = []
    for key, value in overrides.items():
        if "=" in key:
            raise ConfigError(f"'{key}': the name of a setting has no '='")
        values = list(value) if swept and isinstance(value, list | tuple | range | np.ndarray) else [value]
        if not values:
            raise ConfigError(f"{key}: the list of values is empty")
        words.append(f"{key}={','.join(_written(key, one) for one in values)}")
    return words


def _written(key: str, value: Any) -> str:
    """A value as on the command line: simple strings bare, so that a sweep's folders are named alike."""
    if isinstance(value, str) and SIMPLE.fullmatch(value) and parse_overrides([f"x={value}"]) == {"x": value}:
        return value
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise ConfigError(f"{key}: expected finite numbers, got {value!r}") from None
    except TypeError:
        raise ConfigError(f"{key}: cannot be written in a config: {value!r}") from None


def _plain(value: Any) -> Any:
    """Paths, ranges, and NumPy's numbers and arrays as JSON has them."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError


@dataclass(frozen=True)
class MatchResult:
    """Every player against every other, over all seats."""

    players: list[matches.Player]
    matrix: list[list[matches.Pairing]]  # entry [i][j] has player i on the first side
    episodes: int  # for every pair and rotation of seats
    seed: int

    def __str__(self) -> str:
        return show_match.as_table(self.players, self.matrix)

    def to_dict(self) -> dict[str, Any]:
        """The object that `coterie match --json` prints."""
        return show_match.to_dict(self.players, self.matrix, self.episodes, self.seed)

    def to_pandas(self) -> Any:
        """A data frame with one row for every ordered pair of players."""
        names = [player.name for player in self.players]
        rows = [
            {"first": one, "second": other} | show_match.pairing_to_dict(entry)
            for one, row in zip(names, self.matrix, strict=True)
            for other, entry in zip(names, row, strict=True)
        ]
        return data_frame(rows)


def match(
    players: RunLike | Sequence[RunLike],
    world: Experiment | None = None,
    episodes: int = 100,
    seed: int = 0,
    stochastic: bool = False,
    checkpoint: str = "best",
) -> MatchResult:
    """Play runs, and policies such as `"random"`, against each other in all seats: what `coterie match` does.

    `world` is the experiment or run that sets the table; by default that of the first run.
    """
    if episodes < 2:
        raise ConfigError(f"episodes must be at least 2, got {episodes}")
    opened = matches.open_players(_paths(players), checkpoint)
    table = matches.choose_table(opened, world)
    return MatchResult(opened, matches.cross_play(opened, table, episodes, seed, not stochastic), episodes, seed)


@dataclass(frozen=True)
class ComparisonResult:
    """Statistics of variants over their runs."""

    comparison: comparing.Comparison
    score: str
    skipped: list[Path]  # unfinished runs that were left out

    def __str__(self) -> str:
        return show_comparison.as_table(self.comparison, self.score, self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """The statistics that `coterie compare --json` prints."""
        return show_comparison.to_dict(self.comparison)

    def to_pandas(self) -> Any:
        """A data frame with one row for every run."""
        return data_frame(show_comparison.as_rows(self.comparison))


def compare(
    runs: RunLike | Sequence[RunLike],
    threshold: float | None = None,
    score: str = "best",
    group: str | None = None,
    by: Sequence[str] = (),
    skip_unfinished: bool = False,
) -> ComparisonResult:
    """Compare runs, or directories with runs below them, by variant: what `coterie compare` does."""
    results, skipped = read(_paths(runs), score, group, skip_unfinished)
    return ComparisonResult(comparing.compare(gather(results, by), threshold), score, list(skipped))


def report(runs: RunLike | Sequence[RunLike], out: str | Path | None = None) -> Path:
    """Write an HTML report of one run or several: what `coterie report` does. Returns its path."""
    found = [run for _, run in find_runs(_paths(runs))]
    return reports.write_report(found, Path(out) if out else reports.default_path(found))


def _paths(runs: RunLike | Sequence[RunLike]) -> list[str]:
    """The paths of runs; a single one may stand without a list."""
    many = [runs] if isinstance(runs, (str, Path, Run)) else runs
    return [str(run.path) if isinstance(run, Run) else str(run) for run in many]
