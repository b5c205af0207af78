"""Isolation by Landlock and seccomp, where bubblewrap cannot run: one process that reads its interpreter."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import tempfile
from pathlib import Path

from coterie.sandbox import seccomp
from coterie.sandbox.bubblewrap import BOOT
from coterie.sandbox.interpreter import FLAGS, Interpreter, boot_settings
from coterie.sandbox.supervise import Ended, exit_code, pipe, started, supervise
from coterie.sandbox.verdict import Limits

CREATE_RULESET, VERSION = 444, 1
LEAST_VERSION = 6  # the first that keeps signals and abstract sockets inside


def available() -> bool:
    """Whether the kernel has a version of Landlock that suffices, and its system calls are known here."""
    if not seccomp.supported():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(VERSION))) >= (
        LEAST_VERSION
    )


def run(source: bytes, stdin: bytes, limits: Limits, python: Interpreter) -> tuple[Ended, int | None]:
    """Run a program; returns what was seen, and its exit code, or None where the sandbox did not come to run it."""
    with tempfile.TemporaryDirectory(prefix="coterie-sandbox-") as folder, pipe() as (reports, reporting):
        os.chmod(folder, 0o755)
        Path(folder, "root").mkdir(0o755)
        program, boot = Path(folder, "program.py"), Path(folder, "boot.py")
        program.write_bytes(source)
        boot.write_bytes(BOOT.read_bytes())
        settings = boot_settings(limits) | {
            "readable": [*python.readable, *existing("/dev/null", "/dev/zero", "/dev/urandom")],
            "filter": seccomp.build_filter(alone=True).hex(),
            "report": reporting,
            "place": str(Path(folder, "root")),  # for a root of its own
            "links": python.links,
            "pivot_root": seccomp.number("pivot_root"),
            "machine": platform.machine(),
        }
        del settings["limits"]["RLIMIT_NPROC"]  # it would count all processes and threads of this user
        command = [python.path, *FLAGS, str(boot), json.dumps(settings), str(program)]
        ended = supervise(command, stdin, limits, (reporting,), python.run_as)
        return ended, exit_code(ended) if started(reports, ended) else None


def existing(*paths: str) -> list[str]:
    """Those of the paths that are there."""
    return [path for path in paths if os.path.exists(path)]
