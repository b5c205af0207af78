"""Limits and verdict of one program run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.types import CoterieError
from coterie.core.validation import positive, whole, within

MOST = 10**9  # of anything; the kernel's counters hold that many megabytes in bytes
Status = Literal["pass", "fail", "timeout", "memory", "output", "infrastructure"]


class SandboxUnavailable(CoterieError):
    """This machine has no mechanism that can isolate a program."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run, for the whole tree of its processes unless said otherwise."""

    cpu_seconds: float = 2.0  # processor time
    wall_seconds: float | None = None  # time on the clock; None: 3 · cpu_seconds + 5
    memory_mb: int = 256  # resident memory; also the address space of each process, with 64 MB more for Python itself
    output_bytes: int = 1_000_000  # of standard output, and of standard error
    processes: int = 16  # processes and threads at a time (Landlock: threads of its one process)
    files_mb: int = 16  # of the private /tmp (bubblewrap; elsewhere nothing can be written)

    def __post_init__(self) -> None:
        for name, value in (("cpu_seconds", self.cpu_seconds), ("wall_seconds", self.wall)):
            positive(name, value)
            within(name, value, 0, MOST)
        for name in ("memory_mb", "output_bytes", "processes", "files_mb"):
            whole(name, getattr(self, name))
            within(name, getattr(self, name), 1, MOST)

    @property
    def wall(self) -> float:
        """Seconds on the clock after which everything is killed."""
        return 3 * self.cpu_seconds + 5 if self.wall_seconds is None else self.wall_seconds


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run."""

    status: Status  # pass: exit code 0; fail: another one, or a signal; infrastructure: the sandbox itself failed
    stdout: str  # up to the limit; bytes that are not UTF-8 are replaced
    stderr: str
    exit_code: int | None  # as a shell says it: 128 + n for signal n; None where the sandbox ended the run
    cpu_seconds: float  # of the whole tree, as far as it was seen
    wall_seconds: float
    memory_mb: float  # the most resident memory that was seen
    reason: str = ""  # why the sandbox ended the run or failed, in words
