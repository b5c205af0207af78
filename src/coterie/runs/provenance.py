"""Provenance of a run: command, date, version and machine of its start and of every resumption.

They go into `provenance.json`, apart from the results, which do not depend on them. While a process trains a run it
holds the run's lock, so that nobody deletes it or trains it a second time.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import coterie
from coterie.core.cores import usable_cores
from coterie.core.types import CoterieError
from coterie.runs.run import LOCK, PROVENANCE, STUDY_LOCK, Run, write_text

LOOK = 0.3  # seconds after which a lock is no look of `is_locked`, which holds it for a moment


@dataclass(frozen=True)
class Start:
    """One start of a run."""

    command: str
    date: str  # UTC
    version: str  # of Coterie
    python: str
    machine: str  # system, processor, cores, memory and GPU


def note_start(run: Run, resumed: bool) -> None:
    """Add this process to the run's starts; those of a run that begins anew are forgotten."""
    earlier = starts(run) if resumed else []
    found = [*earlier, this_start()]
    write_text(run.path / PROVENANCE, json.dumps([asdict(one) for one in found], indent=1) + "\n")


def starts(run: Run) -> list[Start]:
    """The starts of a run, the first one first; none where an earlier version trained it or the file is damaged."""
    try:
        return [Start(**one) for one in json.loads((run.path / PROVENANCE).read_text())]
    except (OSError, ValueError, TypeError):
        return []


def this_start() -> Start:
    """This process."""
    script = Path(sys.argv[0])
    program = f"python -m {script.parent.name}" if script.name == "__main__.py" else script.name or "python"
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    command = " ".join([program, *map(shlex.quote, sys.argv[1:])])
    return Start(command, date, coterie.__version__, platform.python_version(), machine())


def machine() -> str:
    """System, processor, cores, memory and GPU in a few words."""
    import torch

    words = [f"{platform.system()} {platform.machine()}", _processor(), f"{usable_cores()} cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        words.append(f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB")
    words += [torch.cuda.get_device_name(0)] if torch.cuda.is_available() else []
    return ", ".join(word for word in words if word)


def _processor() -> str:
    """The processor's name, where the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# In use -------------------------------------------------------------------------------------------------


@contextmanager
def locked(run: Run) -> Iterator[None]:
    """Hold the run's lock; refuse a run that another process trains."""
    with _held(run.path / LOCK, f"'{run.path}' is being trained by another process; wait for it, or stop it"):
        yield


@contextmanager
def study_locked(trials: Path, study: Path) -> Iterator[None]:
    """Hold the lock of a study, in the directory of its trials; refuse a study that another process tunes."""
    trials.mkdir(parents=True, exist_ok=True)
    with _held(trials / STUDY_LOCK, f"'{study}' is being tuned by another process; wait for it, or stop it"):
        yield


@contextmanager
def _held(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file, which a process releases when it ends, however it ends."""
    with open(path, "w") as file:
        until = time.monotonic() + LOOK
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise CoterieError(refusal) from None
            time.sleep(0.01)
        yield


def in_training(run: Run) -> bool:
    """Whether a process holds the run's lock."""
    return is_locked(run.path / LOCK)


def in_study(run: Run) -> bool:
    """Whether the run is a trial, or a member of a population, of a study that is going on."""
    return any(is_locked(folder / STUDY_LOCK) for folder in run.path.resolve().parents[:2])  # trials may have seeds


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
