"""Sweeps: one run for every combination of settings, one after the other or several at a time.

A sweep that was stopped goes on when it is started again with the same directory: finished runs stay, stopped ones are
resumed. Every run has a process or the whole process to itself, so results do not depend on the number of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.runs.interrupt import Interrupted, Interruption
from coterie.runs.run import Run
from coterie.studies.report.report import write_report
from coterie.training import start
from coterie.training.jobs import demand_jobs, run_parallel
from coterie.training.loop import run_directory


@dataclass(frozen=True)
class Combination:
    """One run of a sweep."""

    overrides: list[str]
    directory: Path


Experiment = str | Path | Mapping[str, Any]  # a name, a file, or settings
Begin = Callable[[int, Combination], None]  # called before a run begins, with its number


def plan_sweep(experiment: Experiment, words: Sequence[str], out: str | Path | None) -> list[Combination]:
    """The runs of `a=1,2 b=3,4`, all checked; directories are named by the settings that are swept."""
    combinations = schema.sweep(list(words))
    names = directory_names(words, combinations)
    configs = [start.check(experiment, combination) for combination in combinations]  # before the first one trains
    settings = [schema.to_dict(config) for config in configs]
    planned: list[Combination] = []
    for number, (name, combination, config) in enumerate(zip(names, combinations, configs, strict=True)):
        if settings[number] in settings[:number]:  # the same value written differently, such as 0.9 and 0.90
            refuse_twice(combination)
        directory = run_directory(config, out) / (name if out is not None else "")
        while directory in [earlier.directory for earlier in planned]:
            directory = directory.with_name(directory.name + "-2")
        planned.append(Combination(combination, directory))
        demand_same(directory, config)
    return planned


def directory_names(words: Sequence[str], combinations: Sequence[list[str]]) -> list[str]:
    """A directory's name for each combination: the settings that are swept."""
    names: list[str] = []
    for number, combination in enumerate(combinations):
        if combination in combinations[:number]:
            refuse_twice(combination)
        swept = [word for word in combination if word not in words]
        name = ("_".join(swept) or "run").replace("/", "-")
        while name in names:  # different values that read the same as a directory
            name += "-2"
        names.append(name)
    return names


def refuse_twice(combination: Sequence[str]) -> NoReturn:
    """Refuse settings that a sweep has already."""
    raise ConfigError(f"-m: {' '.join(combination)} would be trained twice; name every value once")


def demand_same(directory: Path, config: schema.Config) -> None:
    """Refuse a directory that holds a run with other settings."""
    if (directory / "config.yaml").is_file() and schema.to_dict(Run.open(directory).config()) != schema.to_dict(config):
        raise ConfigError(f"'{directory}' holds a run with other settings; choose another --out")


def train_one(experiment: Experiment, overrides: list[str], directory: str, quiet: bool) -> None:
    """Train a run, resume it, or leave it alone if it has finished."""
    if (Path(directory) / "config.yaml").is_file():
        start.resume(directory, None, quiet, write_report)
    else:
        start.train(experiment, overrides, directory, quiet, write_report)


def run_sweep(
    experiment: Experiment,
    planned: Sequence[Combination],
    jobs: int,
    quiet: bool,
    interrupted: Interruption,
    begin: Begin = lambda number, combination: None,
) -> Iterator[tuple[int, Run]]:
    """Train all runs; yields (number, run) as they end, stopped ones included."""
    demand_jobs(jobs)
    if jobs == 1:
        for number, one in enumerate(planned):
            if interrupted.is_set():
                return
            begin(number, one)
            try:
                train_one(experiment, one.overrides, str(one.directory), quiet)
            except Interrupted:  # before its first checkpoint
                return
            yield number, Run.open(one.directory)
        return
    waiting = []
    for number, one in enumerate(planned):
        if (one.directory / "summary.json").is_file():  # finished: no process is needed
            yield number, Run.open(one.directory)
        else:
            waiting.append(number)
    tasks = [(experiment, planned[number].overrides, str(planned[number].directory), True) for number in waiting]
    for index, _ in run_parallel(train_one, tasks, jobs, interrupted):
        yield waiting[index], Run.open(planned[waiting[index]].directory)
