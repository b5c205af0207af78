"""The runs below a directory: list them, tag them, archive them, delete them.

Tags and the mark of an archived run are in `labels.json` in the run. A run that a process trains, or whose policies
another run plays with, is not deleted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from coterie.config.schema import SeatedRun
from coterie.core.types import CoterieError
from coterie.runs.provenance import in_study, in_training, starts
from coterie.runs.run import Run, write_text

log = logging.getLogger("coterie")
LABELS = "labels.json"
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Read = TypeVar("Read")
State = Literal["finished", "running", "stopped"]
STATES: tuple[State, ...] = ("finished", "running", "stopped")


@dataclass(frozen=True)
class Labels:
    """A person's notes on a run."""

    tags: tuple[str, ...] = ()
    archived: bool = False


@dataclass(frozen=True)
class Listed:
    """One run in a list."""

    path: str
    experiment: str
    seed: int
    state: State
    steps: int
    score: float | None  # mean return of the groups that learn, best policies; None before the end
    date: str  # of its start; empty where it is not known
    size: int  # bytes
    tags: tuple[str, ...]
    archived: bool


@dataclass(frozen=True)
class Filter:
    """Conditions on the runs that a list shows."""

    experiment: str | None = None  # its name
    state: str | None = None
    tags: tuple[str, ...] = ()  # all of them
    archived: bool = False  # those that are archived, instead of the others

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise CoterieError(f"--state: expected {', '.join(STATES)}, got '{self.state}'")

    def keeps(self, one: Listed) -> bool:
        """Whether a run is shown."""
        return (
            self.experiment in (None, one.experiment)
            and self.state in (None, one.state)
            and set(self.tags) <= set(one.tags)
            and self.archived == one.archived
        )


# Listing ------------------------------------------------------------------------------------------------


def find(folder: Path) -> list[Run]:
    """The runs below a folder, by path; runs inside runs are parts of those."""
    if not folder.is_dir():
        raise CoterieError(f"'{folder}' is not a directory; name one with runs below it: coterie runs --in DIRECTORY")
    found = sorted(Path(place) for place, _, names in os.walk(folder) if "config.yaml" in names)
    inside = set(found)
    return [Run(path) for path in found if not inside & set(path.parents)]


def describe(run: Run) -> Listed:
    """The entry of a run in a list; what cannot be read any more does not keep it out of the list."""
    summary, labels = _unless_damaged(run, Run.summary), _unless_damaged(run, read_labels) or Labels()
    state = state_of(run, summary)
    played = (summary or {}).get("env_steps")
    steps = played if isinstance(played, int) else max(run.steps(), default=0)
    experiment, seed, score = "?", 0, None
    try:
        config = run.config()
        experiment, seed = config.experiment, config.seed
        learning = [name for name, group in config.groups.items() if group.learner is not None] or list(config.groups)
        if summary is not None:
            means = [summary["evaluation"]["groups"][name]["return_mean"] for name in learning]
            score = sum(means) / len(means)
    except (CoterieError, KeyError, TypeError):  # of another version, or damaged
        pass
    score = None if score is None or math.isnan(score) else score
    began = starts(run)
    date = str(began[0].date) if began else ""
    return Listed(str(run.path), experiment, seed, state, steps, score, date, size(run.path), *labels_of(labels))


def state_of(run: Run, summary: dict[str, Any] | None) -> State:
    """Whether a run with this summary is running, finished or stopped."""
    if in_training(run):
        return "running"
    return "stopped" if summary is None else "finished"


def _unless_damaged(run: Run, read: Callable[[Run], Read]) -> Read | None:
    """Read one of a run's files; None with a warning where it is damaged."""
    try:
        return read(run)
    except CoterieError as error:
        log.warning("%s", error)
        return None


def labels_of(labels: Labels) -> tuple[tuple[str, ...], bool]:
    return labels.tags, labels.archived


def size(folder: Path) -> int:
    """Bytes of all files below a folder; a training may replace files meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(place, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


# Labels -------------------------------------------------------------------------------------------------


def read_labels(run: Run) -> Labels:
    """A run's labels; none where nobody has set any."""
    file = run.path / LABELS
    if not file.exists():
        return Labels()
    try:
        held = json.loads(file.read_text())
        return Labels(tuple(map(str, held["tags"])), bool(held["archived"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CoterieError(f"'{file}' is damaged: {error}; delete it to remove the run's labels") from None


def check_tags(add: Collection[str], remove: Collection[str]) -> None:
    """Refuse tags that nobody could filter by, and a command without any."""
    if not add and not remove:
        raise CoterieError("name a tag with --add or --remove: coterie runs tag RUN --add NAME")
    for name in add:
        if not TAG.fullmatch(name):
            raise CoterieError(f"--add: a tag has letters, digits, '.', '_' and '-', got '{name}'")


def tag(runs: Sequence[Run], add: Iterable[str], remove: Iterable[str]) -> None:
    """Add and remove tags."""
    add, remove = list(add), set(remove)
    check_tags(add, remove)
    for run in runs:
        labels = read_labels(run)
        kept = [name for name in dict.fromkeys([*labels.tags, *add]) if name not in remove]
        _write(run, Labels(tuple(kept), labels.archived))


def archive(runs: Sequence[Run], back: bool) -> None:
    """Hide runs from lists, or show them again; their files stay where they are."""
    for run in runs:
        _write(run, Labels(read_labels(run).tags, not back))


def _write(run: Run, labels: Labels) -> None:
    write_text(run.path / LABELS, json.dumps(asdict(labels)) + "\n")


# Deleting -----------------------------------------------------------------------------------------------


def refuse_in_use(runs: Sequence[Run], folder: Path) -> None:
    """Refuse runs that are being trained, or whose policies a run that stays plays with."""
    leaving = {run.path.resolve() for run in runs}
    for run in runs:
        inner = [Run(file.parent) for file in run.path.rglob("config.yaml")]
        for one in inner:
            if in_training(one):
                raise CoterieError(f"'{one.path}' is being trained; stop it first. Nothing was deleted")
        if in_study(run):
            raise CoterieError(f"'{run.path}' belongs to a study that goes on; stop it first. Nothing was deleted")
    for other in find(folder) if folder.is_dir() else []:
        if other.path.resolve() in leaving:
            continue
        for path in _seated(other):
            if path in leaving:
                raise CoterieError(
                    f"'{other.path}' plays with policies of '{_shown(path)}'; delete it first, or both together. "
                    "Nothing was deleted"
                )


def delete(run: Run) -> None:
    """Delete a run: first it leaves its place, so that a stop in between leaves no half of a run behind."""
    leaving = run.path.with_name(f".{run.path.name}.deleted")
    if leaving.exists():  # a deletion was stopped there
        shutil.rmtree(leaving)
    os.rename(run.path, leaving)
    shutil.rmtree(leaving)


def _seated(run: Run) -> list[Path]:
    """The runs whose policies a run plays with."""
    try:
        policies = [group.policy for group in run.config().groups.values()]
    except CoterieError:
        return []
    return [Path(one.run).resolve() for one in policies if isinstance(one, SeatedRun)]


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
