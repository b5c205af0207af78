"""The Python interface: train, resume and load runs, and write their reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.studies import report
from coterie.training import clone as cloning
from coterie.training import start
from coterie.training.run import Run
from coterie.training.table import Table, load

__all__ = ["Table", "clone", "load", "resume", "train"]


def train(
    experiment: str, overrides: list[str] | str | None = None, out: str | Path | None = None, quiet: bool = False
) -> Run:
    """Train an experiment, by name or file, and write a run: what `coterie train` does.

    `overrides` are settings as on the command line: `["seed=1", "train.total_steps=10000"]`, or a single `"seed=1"`.
    """
    return start.train(experiment, overrides, out, quiet, report.write_report)


def clone(
    experiment: str,
    demonstrations: Sequence[str | Path],
    overrides: list[str] | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Run:
    """Train an experiment's policies to imitate demonstrations, and write a run: what `coterie clone` does."""
    return cloning.clone(experiment, demonstrations, overrides, out, quiet, report.write_report)


def resume(path: str | Path, overrides: list[str] | str | None = None, quiet: bool = False) -> bool:
    """Continue a run from its newest intact checkpoint; False when it had already finished."""
    return start.resume(path, overrides, quiet, report.write_report)
