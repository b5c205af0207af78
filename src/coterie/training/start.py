"""Start and resume trainings: check an experiment, create its run, continue one that was stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.config import schema
from coterie.runs.extras import extra
from coterie.runs.run import Run, entry, number
from coterie.training import build
from coterie.training.loop import Report, run_directory
from coterie.training.loop import train as run_training

log = logging.getLogger("coterie")


def check(experiment: str | Path | Mapping[str, Any], overrides: list[str] | str | None = None) -> schema.Config:
    """An experiment's config, after building everything it names: a refusal comes before anything runs."""
    settings = schema.load(experiment, overrides)
    groups = build.build_groups(settings, build.build_world(settings.world, 1))
    build.probe_learners(settings, groups)
    build.start_groups(settings, groups)
    return settings


def train(
    experiment: str | Path | Mapping[str, Any],
    overrides: list[str] | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    report: Report | None = None,
) -> Run:
    """Train an experiment; returns the run."""
    settings = schema.load(experiment, overrides)
    run = Run.create(run_directory(settings, out), settings)
    run_training(settings, run, quiet=quiet, report=report)
    return run


def resume(
    path: str | Path, overrides: list[str] | str | None = None, quiet: bool = False, report: Report | None = None
) -> bool:
    """Go on with a run from its newest intact checkpoint; False when it had already finished."""
    run = Run.open(path)
    settings = run.config(overrides)
    refuse_own_policies(run, settings)
    summary = run.summary()
    if summary is not None:
        solved = entry(run, summary, "solved") and settings.train.stop == run.config().train.stop
        if solved or number(run, summary, "env_steps") >= settings.train.total_steps:
            if report is not None and not (run.path / "report.html").exists():  # killed before its report
                with extra("report"):
                    report([run], run.path / "report.html")
            return False
    state = run.newest(run.steps())
    if state is None and run.steps():
        log.warning("'%s' has no intact checkpoint left; it starts anew from its config", path)
    run_training(settings, run, state, quiet=quiet, report=report)
    return True


def refuse_own_policies(run: Run, settings: schema.Config) -> None:
    """Refuse a group that would play with its own policy of the same run: there would be none any more."""
    for name, group in settings.groups.items():
        chosen = group.policy
        if not isinstance(chosen, schema.SeatedRun) or (chosen.group or name) != name:
            continue
        if Path(chosen.run).resolve() == run.path.resolve():
            cure = "name another run or group"
            raise schema.ConfigError(f"groups.{name}.policy: '{name}' would play with its own policy; {cure}")
