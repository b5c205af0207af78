"""Start and resume trainings: check an experiment, create its run, continue one that was stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.config import schema
from coterie.core.lookup import Trust
from coterie.runs.run import Run, entry, number, refuse_own_policies
from coterie.training import build
from coterie.training.identity import refuse_other_problem, refuse_without_effect
from coterie.training.loop import Outputs, run_directory
from coterie.training.loop import train as run_training

log = logging.getLogger("coterie")


def check(
    experiment: str | Path | Mapping[str, Any], overrides: list[str] | str | None = None, trust: Trust = "signed"
) -> schema.Config:
    """An experiment's config, after building everything it names: a refusal comes before anything runs."""
    settings = schema.load(experiment, overrides, trust)
    groups = build.build_groups(settings, build.build_world(settings.world, 1))
    build.probe_learners(settings, groups)
    build.start_groups(settings, groups)
    return settings


def train(
    experiment: str | Path | Mapping[str, Any],
    overrides: list[str] | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    outputs: Outputs | None = None,
    trust: Trust = "signed",
) -> Run:
    """Train an experiment; returns the run."""
    settings = schema.load(experiment, overrides, trust)
    run = Run.create(run_directory(settings, out), settings)
    run_training(settings, run, quiet=quiet, outputs=outputs)
    return run


def resume(
    path: str | Path,
    overrides: list[str] | str | None = None,
    quiet: bool = False,
    outputs: Outputs | None = None,
    trust: Trust = "signed",
) -> bool:
    """Go on with a run from its newest intact checkpoint; False when it had already finished."""
    run = Run.open(path, trust)
    before, settings = run.playable(), run.playable(overrides)
    refuse_own_policies(run, settings)
    refuse_other_problem(run, before, settings)
    summary = run.summary()
    if summary is not None:
        solved = entry(run, summary, "solved") and settings.train.stop == before.train.stop
        steps = int(number(run, summary, "env_steps"))
        if solved or steps >= settings.train.total_steps:
            refuse_without_effect(run, before, settings, steps)
            if outputs is not None:
                outputs.missing(run)
            return False
    state = run.newest(run.steps())
    if state is None and run.steps():
        log.warning("'%s' has no intact checkpoint left; it starts anew from its config", path)
    run_training(settings, run, state, quiet=quiet, outputs=outputs)
    return True
