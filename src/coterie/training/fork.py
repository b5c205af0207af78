"""Forks: a new run that goes on from another one's newest checkpoint with changed settings, and names its parent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.config import schema
from coterie.core.files import replacing
from coterie.core.lookup import Trust
from coterie.core.types import CoterieError, State
from coterie.runs import checkpoint
from coterie.runs.history import Parent
from coterie.runs.provenance import locked
from coterie.runs.records import lines_until
from coterie.runs.run import PROVENANCE, Run, refuse_own_policies
from coterie.training.identity import changes, refuse_other_counting
from coterie.training.language_models import ANSWERS
from coterie.training.loop import Outputs
from coterie.training.loop import train as run_training


def fork(
    path: str | Path,
    out: str | Path,
    overrides: list[str] | str | None = None,
    quiet: bool = False,
    outputs: Outputs | None = None,
    trust: Trust = "signed",
) -> Run:
    """Continue a run in a new directory, with changed settings; the run itself stays as it is."""
    parent = Run.open(path, trust)
    before, settings = parent.playable(), parent.playable(overrides)
    refuse_other_counting(before, settings)
    if out == "":  # of a shell variable that is not set
        raise schema.ConfigError("--fork: expected a directory, got ''")
    child = Run(Path(out), settings.trust)
    refuse_own_policies(child, settings)
    if child.path.exists() and (not child.path.is_dir() or any(child.path.iterdir())):
        raise CoterieError(f"'{out}' is there already; --fork needs a new directory")
    with locked(parent):
        state = _copied(parent, child, before, settings)
    try:
        run_training(settings, child, state, quiet=quiet, outputs=outputs)
    except BaseException:
        if not (child.path / PROVENANCE).exists():  # refused before it began: the checkpoint does not fit, or so
            shutil.rmtree(child.path)
        raise
    return child


def _copied(parent: Run, child: Run, before: schema.Config, settings: schema.Config) -> State:
    """Fill the new directory under a temporary name, then rename it; returns the checkpoint that it goes on from."""
    state = parent.newest(parent.steps())
    if state is None:
        raise CoterieError(f"'{parent.path}' has no intact checkpoint to go on from")
    step = state["env_steps"]
    if step >= settings.train.total_steps:
        raise schema.ConfigError(
            f"train.total_steps: '{parent.path}' is at {step:,} steps, so nothing would be left to train; "
            f"got {settings.train.total_steps:,}"
        )
    begun = Run(child.path.with_name(f".{child.path.name}.fork"), child.trust)
    if begun.path.exists():  # of a fork that was killed
        shutil.rmtree(begun.path)
    begun.checkpoints.mkdir(parents=True)
    if plays_elsewhere(before, settings):
        state = without_play(state)
    else:
        with replacing(begun.metrics_file) as file:
            file.write(lines_until(parent.metrics_file, step))
        best = parent.newest([found for found in parent.steps("best") if found <= step], "best")
        if best is not None:
            checkpoint.save(begun.checkpoint_path(best["env_steps"], "best"), best)
    checkpoint.save(begun.checkpoint_path(step), state)
    if (parent.path / ANSWERS).exists():  # so that no language model is asked again
        shutil.copyfile(parent.path / ANSWERS, begun.path / ANSWERS)
    history = replace(parent.known_history(), parent=Parent(str(parent.path.absolute()), step))
    begun.write_config(settings, step, history)
    os.rename(begun.path, child.path)
    return state


def plays_elsewhere(before: schema.Config, settings: schema.Config) -> bool:
    """Whether the episodes under way, and scores so far, are of another world or drawn from another seed."""
    paths = [path for path, _, _ in changes(before, settings) if path not in schema.WITHOUT_EFFECT]
    return any(path == "seed" or path.startswith("world.") for path in paths)


def without_play(state: Mapping[str, Any]) -> State:
    """A checkpoint whose policies and learners go on while episodes begin anew and scores are found anew."""
    nothing: dict[str, Any] = {"shards": None, "step_0": {}, "unrecorded": None, "recent": {}}
    best: dict[str, Any] = {"best_step": -1, "best_score": float("-inf"), "best_constants": None, "best_opposed": False}
    return {**state, **nothing, **best}
