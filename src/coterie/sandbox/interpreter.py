"""The Python that runs a program: where it is, which files it needs, and the user it runs as."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.sandbox.verdict import Limits, SandboxUnavailable

NOBODY = 65534
PYTHON_MB = 64  # address space that an interpreter maps before it runs anything
LIBRARIES = ("/usr", "/lib", "/lib64", "/bin")
# All that a program finds in its environment: nothing of the caller's. One heap for all threads, since each further one
# takes 64 MB of address space, so that a few threads would pass the limit; the same hashes of texts in every run.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "PYTHONHASHSEED": "0"}
# No site, no files of the user's. Not -I or -E, which ignore the hash seed above: there are no other PYTHON… variables,
# and boot.py takes its own folder off the path.
FLAGS = ("-s", "-S", "-B")


@dataclass(frozen=True)
class Interpreter:
    """An interpreter and what it needs."""

    path: str
    readable: tuple[str, ...]  # folders with its files and libraries
    links: tuple[tuple[str, str], ...]  # links of the root folder, such as /lib -> usr/lib
    run_as: int | None  # the user to change to; None: the present one


@functools.cache
def find_interpreter() -> Interpreter:
    """The interpreter that runs programs: this one, or the system's where another user cannot read this one's files.

    Root's programs run as nobody. `python3` is the system's.
    """
    own, system = os.path.realpath(sys._base_executable), shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")  # type: ignore[attr-defined]  # CPython has it
    run_as = NOBODY if os.geteuid() == 0 else None
    candidates = [own] + ([os.path.realpath(system)] if system else [])
    for path in candidates:
        if run_as is None or runs(path, run_as):
            return describe(path, run_as)
    raise SandboxUnavailable(
        f"no Python that the user nobody can run: {', '.join(candidates)}; install the system's python3, or run "
        "Coterie as an ordinary user"
    )


def runs(path: str, user: int) -> bool:
    """Whether a user can start this interpreter."""
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", ""], user=user, group=user, extra_groups=[], cwd="/", capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0


def describe(path: str, run_as: int | None) -> Interpreter:
    """An interpreter with the folders that it needs."""
    links = tuple((name, os.readlink(name)) for name in LIBRARIES if os.path.islink(name))
    folders = [name for name in LIBRARIES if os.path.isdir(name) and not os.path.islink(name)]
    prefix = Path(path).parent.parent  # not all of it: that of ~/bin/python is a home
    for folder in (str(prefix / name) for name in ("bin", "lib", "lib64")):
        if os.path.isdir(folder) and not any(f"{folder}/".startswith(f"{known}/") for known in folders):
            folders.append(folder)
    return Interpreter(path, tuple(folders), links, run_as)


def boot_settings(limits: Limits) -> dict[str, Any]:
    """Settings of `boot.py`: hard limits by the names of `resource`."""
    space = (limits.memory_mb + PYTHON_MB) * 2**20
    return {
        "limits": {
            "RLIMIT_AS": space,
            "RLIMIT_CPU": int(limits.cpu_seconds) + 2,  # the supervisor counts fractions, and the whole tree
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": limits.files_mb * 2**20,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_NPROC": limits.processes,
        }
    }
