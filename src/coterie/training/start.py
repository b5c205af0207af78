"""Start and resume trainings: check an experiment, create its run, continue one that was stopped."""

from __future__ import annotations

import logging
from pathlib import Path

from coterie.config import schema
from coterie.core.group import Probing
from coterie.core.types import Experience
from coterie.training import build
from coterie.training.loop import Report, run_directory
from coterie.training.loop import train as run_training
from coterie.training.run import Run
from coterie.training.runner import Runner

log = logging.getLogger("coterie")


def check(experiment: str, overrides: list[str] | None = None) -> schema.Config:
    """An experiment's config, after building everything it names once: refusals come before a directory does."""
    settings = schema.load(experiment, overrides)
    world = build.build_world(settings.world, 1)
    groups = build.build_groups(settings, world)
    learners = [group.learner for group in groups]
    if any(isinstance(learner, Probing) for learner in learners):
        glimpse = Runner(world, [group.actor for group in groups], settings.seed).play(1, 0)
        for group, learner in zip(groups, learners, strict=True):
            if isinstance(learner, Probing):
                probe(group.name, learner, glimpse.experiences[group.name])
    return settings


def probe(group: str, learner: Probing, own: Experience) -> None:
    """Ask a learner whether it serves where things go on like this."""
    try:
        learner.probe(own)
    except ValueError as error:
        raise schema.ConfigError(f"groups.{group}.learner: {error}") from None


def train(
    experiment: str,
    overrides: list[str] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    report: Report | None = None,
) -> Run:
    """Train an experiment; returns the run."""
    settings = check(experiment, overrides)
    run = Run.create(run_directory(settings, out), settings)
    run_training(settings, run, quiet=quiet, report=report)
    return run


def resume(
    path: str | Path, overrides: list[str] | None = None, quiet: bool = False, report: Report | None = None
) -> bool:
    """Go on with a run from its newest intact checkpoint; False when it had already finished."""
    run = Run.open(path)
    settings = run.config(overrides)
    summary = run.summary()
    if summary is not None:
        solved = summary["solved"] and settings.train.stop == run.config().train.stop
        if solved or summary["env_steps"] >= settings.train.total_steps:
            return False
    state = run.newest(run.steps())
    if state is None and run.steps():
        log.warning("'%s' has no intact checkpoint left; it starts anew from its config", path)
    run_training(settings, run, state, quiet=quiet, report=report)
    return True
