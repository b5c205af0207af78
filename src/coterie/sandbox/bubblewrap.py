"""Isolation by bubblewrap: namespaces of its own for users, processes, network and files."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from coterie.sandbox import seccomp
from coterie.sandbox.interpreter import ENVIRONMENT, FLAGS, Interpreter, boot_settings
from coterie.sandbox.supervise import Ended, arrived, exit_code, pipe, started, supervise
from coterie.sandbox.verdict import Limits

BOOT = Path(__file__).with_name("boot.py")


def available() -> bool:
    """Whether the program is installed."""
    return shutil.which("bwrap") is not None


@contextlib.contextmanager
def readable_as_file(data: bytes) -> Iterator[int]:
    """A file without a name that holds data, open at its start."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        file.seek(0)
        yield file.fileno()


def arguments(python: Interpreter, limits: Limits, source: int, boot: int, calls: int, status: int) -> list[str]:
    """Bubblewrap's command line: an empty root, the interpreter's files, a private /tmp, and nothing that leads out."""
    binds = [word for path in python.readable for word in ("--ro-bind", path, path)]
    links = [word for link, target in python.links for word in ("--symlink", target, link)]
    return [
        str(shutil.which("bwrap")),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"),
        *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
        *binds,
        *links,
        *("--proc", "/proc", "--dev", "/dev", "--size", str(limits.files_mb * 2**20), "--tmpfs", "/tmp"),
        *("--dev-bind", "/dev/null", "/dev/zero"),  # mapped, zeros are shared memory that nobody counts
        *("--remount-ro", "/dev"),
        *("--ro-bind-data", str(source), "/program.py", "--ro-bind-data", str(boot), "/boot.py"),
        *("--remount-ro", "/", "--chdir", "/tmp", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp"),
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *("--seccomp", str(calls), "--json-status-fd", str(status)),
    ]


def run(source: bytes, stdin: bytes, limits: Limits, python: Interpreter) -> tuple[Ended, int | None]:
    """Run a program; returns what was seen, and its exit code, or None where the sandbox did not come to run it."""
    with (
        pipe() as (status, report),
        pipe() as (reports, reporting),
        readable_as_file(source) as program,
        readable_as_file(BOOT.read_bytes()) as boot,
        readable_as_file(seccomp.build_filter(alone=False)) as calls,
    ):
        settings = json.dumps(boot_settings(limits) | {"report": reporting})
        command = [
            *arguments(python, limits, program, boot, calls, report),
            *(python.path, *FLAGS, "/boot.py", settings, "/program.py"),
        ]
        ended = supervise(command, stdin, limits, (program, boot, calls, report, reporting), python.run_as)
        if not started(reports, ended):
            return ended, None
        codes = [json.loads(line).get("exit-code") for line in arrived(status).splitlines()]
    # without a report the program has brought down the first process of its namespace, which reports
    return ended, next((code for code in codes if code is not None), exit_code(ended))
