"""No isolation: a plain process with limits, for machines where nothing else runs and a user has allowed it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from coterie.sandbox.bubblewrap import BOOT
from coterie.sandbox.interpreter import FLAGS, Interpreter, boot_settings
from coterie.sandbox.supervise import Ended, exit_code, pipe, started, supervise
from coterie.sandbox.verdict import Limits

ALLOW = "COTERIE_UNSAFE_LOCAL_EXEC"  # in the environment, so that worker processes inherit it


def allow() -> None:
    """Let programs run unprotected in this process and its children: `--unsafe-local-exec`."""
    os.environ[ALLOW] = "1"


def allowed() -> bool:
    """Whether a user has said so."""
    return os.environ.get(ALLOW) == "1"


def run(source: bytes, stdin: bytes, limits: Limits, python: Interpreter) -> tuple[Ended, int | None]:
    """Run a program; returns what was seen, and its exit code, or None where the program did not start."""
    settings = boot_settings(limits)
    del settings["limits"]["RLIMIT_NPROC"]  # it would count all processes of this user
    with tempfile.TemporaryDirectory(prefix="coterie-unsafe-") as folder, pipe() as (reports, reporting):
        os.chmod(folder, 0o755)
        program = Path(folder, "program.py")
        program.write_bytes(source)
        boot = Path(folder, "boot.py")
        boot.write_bytes(BOOT.read_bytes())
        command = [python.path, *FLAGS, str(boot), json.dumps(settings | {"report": reporting}), str(program)]
        ended = supervise(command, stdin, limits, (reporting,), python.run_as)
        return ended, exit_code(ended) if started(reports, ended) else None
