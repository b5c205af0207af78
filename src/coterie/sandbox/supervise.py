"""Start a process, feed it, read it, and end it and all its descendants when a limit is passed."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coterie.sandbox.verdict import Limits, Status

POLL_SECONDS = 0.01  # between looks at the tree
GIVE_UP_SECONDS = 10.0  # for killed processes to end
CHUNK = 65536
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Ended:
    """What the supervisor saw."""

    stdout: bytes = b""
    stderr: bytes = b""
    returncode: int = 0
    stopped: Status | None = None  # which limit ended the run; None: it ended by itself
    reason: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    memory_mb: float = 0.0
    status_lines: bytes = b""  # what was written to the status pipe, if there was one


@dataclass
class Usage:
    """Processor time and memory of a tree of processes. Time of processes that ended is kept."""

    cpu_seconds: float = 0.0
    memory_mb: float = 0.0  # now
    most_memory_mb: float = 0.0
    seen: dict[int, float] = field(default_factory=dict)  # process -> its seconds, and those of children it waited for

    def look(self, root: int) -> None:
        """Read the tree below a process, itself included."""
        self.memory_mb = 0.0
        waiting = [root]
        while waiting:
            pid = waiting.pop()
            found = read_process(pid)
            if found is None:
                continue
            self.seen[pid], resident = max(self.seen.get(pid, 0.0), found[0]), found[1]
            self.memory_mb += resident
            waiting += children(pid)
        self.most_memory_mb = max(self.most_memory_mb, self.memory_mb)
        # a parent's time includes that of children it has waited for: the largest sum over time is a lower bound
        self.cpu_seconds = max(self.cpu_seconds, sum(self.seen.values()) - self.counted_twice(root))

    def counted_twice(self, root: int) -> float:
        """Seconds of ended children that their parents' times contain as well."""
        gone = [pid for pid in self.seen if pid != root and not os.path.exists(f"/proc/{pid}")]
        return sum(self.seen[pid] for pid in gone)


def read_process(pid: int) -> tuple[float, float] | None:
    """Processor seconds of a process with those of children it has waited for, and its own memory in MB."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/statm", "rb") as file:
            resident, shared = (int(n) for n in file.read().split()[1:3])
    except (OSError, ValueError):
        return None  # it has ended
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICKS, (resident - shared) * PAGE_MB


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    return found


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    found, waiting = [], children(pid)
    while waiting:
        found.append(waiting.pop())
        waiting += children(found[-1])
    return found


def supervise(
    command: Sequence[str],
    stdin: bytes,
    limits: Limits,
    pass_fds: Sequence[int] = (),
    status_fd: int | None = None,
    started: Callable[[], None] = lambda: None,
    drop_to: int | None = None,
) -> Ended:
    """Run a command with an empty environment. `status_fd` is the reading end of a pipe that is collected as well.

    `started` is called once the process runs, to close what only it needs; `drop_to` is the user it runs as.
    """
    begin = time.monotonic()
    user = {} if drop_to is None else {"user": drop_to, "group": drop_to, "extra_groups": []}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        pass_fds=pass_fds,
        start_new_session=True,
        **user,  # type: ignore[call-overload]
    )
    started()
    ended, usage = Ended(), Usage()
    try:
        _follow(process, stdin, limits, status_fd, begin, ended, usage)
    finally:
        _kill_tree(process, set(usage.seen))
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what could not be written any more
                pipe.close()
    ended.returncode = process.returncode
    ended.wall_seconds = time.monotonic() - begin
    ended.cpu_seconds, ended.memory_mb = usage.cpu_seconds, usage.most_memory_mb
    return ended


def _follow(
    process: subprocess.Popen[bytes],
    stdin: bytes,
    limits: Limits,
    status_fd: int | None,
    begin: float,
    ended: Ended,
    usage: Usage,
) -> None:
    """Feed and read the process until it ends or passes a limit."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    kept: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    if status_fd is not None:
        kept[status_fd] = bytearray()
    left, feeding = memoryview(stdin), process.stdin.fileno()
    with selectors.DefaultSelector() as selector:
        for pipe in kept:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ)
        os.set_blocking(feeding, False)
        selector.register(feeding, selectors.EVENT_WRITE)
        while ended.stopped is None:
            for key, _ in selector.select(POLL_SECONDS):
                if key.fd == feeding and not process.stdin.closed:
                    left = _feed(key.fd, left)
                    if not left:
                        selector.unregister(key.fd)
                        process.stdin.close()
                elif not (data := _read(key.fd)):
                    selector.unregister(key.fd)
                else:
                    kept[key.fd] += data
            usage.look(process.pid)
            ended.stopped, ended.reason = _passed(kept, limits, usage, time.monotonic() - begin)
            if process.poll() is not None:
                for fd in kept:  # what was written last
                    while fd in selector.get_map() and len(kept[fd]) <= limits.output_bytes and (data := _read(fd)):
                        kept[fd] += data
                ended.stopped, ended.reason = _passed(kept, limits, usage, 0.0)
                break
    out, err = (bytes(kept[pipe.fileno()][: limits.output_bytes]) for pipe in (process.stdout, process.stderr))
    ended.stdout, ended.stderr = out, err
    if status_fd is not None:
        ended.status_lines = bytes(kept[status_fd])


def _feed(fd: int, left: memoryview) -> memoryview:
    """Write what the pipe takes; nothing is left where the program does not read."""
    try:
        return left[os.write(fd, left[:CHUNK]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return memoryview(b"")


def _read(fd: int) -> bytes:
    """What the pipe has; empty at its end."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return b""


def _passed(kept: dict[int, bytearray], limits: Limits, usage: Usage, seconds: float) -> tuple[Status | None, str]:
    """The limit that has been passed, and the reason in words."""
    if any(len(data) > limits.output_bytes for data in list(kept.values())[:2]):
        return "output", f"wrote more than {limits.output_bytes:,} bytes"
    if usage.memory_mb > limits.memory_mb or usage.most_memory_mb > limits.memory_mb:
        return "memory", f"its processes used {usage.most_memory_mb:.0f} MB, more than {limits.memory_mb}"
    if usage.cpu_seconds > limits.cpu_seconds:
        return "timeout", f"used more than {limits.cpu_seconds:g} s of processor time"
    if seconds > limits.wall:
        return "timeout", f"took longer than {limits.wall:g} s"
    return None, ""


def _kill_tree(process: subprocess.Popen[bytes], seen: set[int]) -> None:
    """Kill a process and all its descendants, those in new sessions too, and return when they have ended.

    A process namespace goes with its first process, which has ended only once all others have. Its number is among
    those that were `seen`.
    """
    below = seen.union(descendants(process.pid)) - {process.pid}
    if process.poll() is None:
        process.kill()
    process.wait()
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while left := [pid for pid in below if _alive(pid)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up:
            raise OSError(f"processes {left} of a sandbox do not end")
        time.sleep(POLL_SECONDS / 10)


def _alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits for its parent to notice has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
