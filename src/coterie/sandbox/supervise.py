"""Start a process, feed it, read it, and end it and all its descendants when a limit is passed."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.sandbox.interpreter import ENVIRONMENT
from coterie.sandbox.verdict import Limits, Status

POLL_SECONDS = 0.01  # between looks at the tree
GIVE_UP_SECONDS = 10.0  # for killed processes to end
CHUNK = 65536
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Ended:
    """The supervisor's record of a run."""

    stdout: bytes = b""
    stderr: bytes = b""
    returncode: int = 0
    stopped: Status | None = None  # which limit ended the run; None: it ended by itself
    reason: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    memory_mb: float = 0.0
    out_of_memory: bool = False  # the interpreter ended the program since it had no memory for it


def exit_code(ended: Ended) -> int:
    """The exit code as a shell says it: 128 + n for signal n."""
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


class Process(NamedTuple):
    """A process as the kernel shows it. Numbers are used again; number and start together are not."""

    pid: int
    start: int  # in clock ticks since the machine's
    running: bool  # False: it has ended and its parent has not noticed
    seconds: float  # of processor time
    waited: float  # of children that it has waited for
    threads: int


@dataclass
class Usage:
    """Processor time and memory of a tree of processes. Time of processes that ended is kept."""

    cpu_seconds: float = 0.0
    memory_mb: float = 0.0  # the most that was seen
    threads: int = 0  # now, of the process with most of them
    seen: dict[tuple[int, int], float] = field(default_factory=dict)  # (number, start) of a process -> its own seconds

    def look(self, root: int, memory_limit: float) -> None:
        """Read the tree below a process, itself included."""
        living: dict[int, Process] = {}
        waiting = [root]
        while waiting:
            pid = waiting.pop()
            if pid not in living and (found := read_process(pid)) is not None:
                living[pid] = found
                self.seen[pid, found.start] = found.seconds
                waiting += children(pid)
        self.threads = max((process.threads for process in living.values()), default=0)
        memory = sum(map(private_memory, living))
        if memory > memory_limit:  # pages that a fork has copied to nobody yet are in it several times
            memory = sum(map(proportional_memory, living))
        self.memory_mb = max(self.memory_mb, memory)
        # two lower bounds: children that ended too soon to be seen are in their parents' times; where a parent does not
        # care for its children they are nowhere but in what was seen
        waited_for = sum(process.seconds + process.waited for process in living.values())
        self.cpu_seconds = max(self.cpu_seconds, waited_for, sum(self.seen.values()))


def read_process(pid: int) -> Process | None:
    """A process; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = [int(n) / TICKS for n in fields[11:15]]
    own, waited = ticks[0] + ticks[1], ticks[2] + ticks[3]
    return Process(pid, int(fields[19]), fields[0] not in (b"Z", b"X"), own, waited, int(fields[17]))


def private_memory(pid: int) -> float:
    """MB that a process holds and that no file holds, without asking who else holds them; 0 once it has ended."""
    return _sum_of_lines(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:", b"VmSwap:")) or 0.0


def proportional_memory(pid: int) -> float:
    """The same, with each page divided by the number of its holders. It takes the kernel some time."""
    found = _sum_of_lines(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:"))
    return private_memory(pid) if found is None else found


def _sum_of_lines(path: str, names: tuple[bytes, ...]) -> float | None:
    """The sum in MB of lines such as `VmSwap: 12 kB`; None where the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(names)) / 1024
    except OSError:
        return None


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


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def started(fd: int, ended: Ended) -> bool:
    """Whether `boot.py` came to run the program, by its reports; they also say whether memory was refused."""
    reports = arrived(fd)
    ended.out_of_memory = reports.startswith(b"readymemory")
    return reports.startswith(b"ready")


def arrived(fd: int) -> bytes:
    """The bytes that a pipe holds, without waiting for more."""
    os.set_blocking(fd, False)
    return _read(fd) or b""


def supervise(
    command: Sequence[str],
    stdin: bytes,
    limits: Limits,
    pass_fds: Sequence[int] = (),
    drop_to: int | None = None,
) -> Ended:
    """Run a command with next to no environment, as the user `drop_to`."""
    begin = time.monotonic()
    user = {} if drop_to is None else {"user": drop_to, "group": drop_to, "extra_groups": []}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
        pass_fds=pass_fds,
        start_new_session=True,
        **user,  # type: ignore[call-overload]  # no overload takes a dict
    )
    ended, usage = Ended(), Usage()
    try:
        _follow(process, stdin, limits, begin, ended, usage)
    finally:
        _kill_tree(process, usage.seen)
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what could not be written any more
                pipe.close()
    ended.returncode = process.returncode
    ended.wall_seconds = time.monotonic() - begin
    ended.cpu_seconds, ended.memory_mb = usage.cpu_seconds, usage.memory_mb
    return ended


def _follow(
    process: subprocess.Popen[bytes],
    stdin: bytes,
    limits: Limits,
    begin: float,
    ended: Ended,
    usage: Usage,
) -> None:
    """Feed and read the process until it ends or passes a limit."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    kept: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
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
                elif (data := _read(key.fd)) == b"":
                    selector.unregister(key.fd)
                elif data is not None:
                    kept[key.fd] += data
            usage.look(process.pid, limits.memory_mb)
            ended.stopped, ended.reason = _passed(kept, limits, usage, time.monotonic() - begin)
            if process.poll() is not None:
                for fd in kept:  # what was written last
                    while fd in selector.get_map() and len(kept[fd]) <= limits.output_bytes and (data := _read(fd)):
                        kept[fd] += data
                ended.stopped, ended.reason = _passed(kept, limits, usage, 0.0)
                break
    out, err = (bytes(kept[pipe.fileno()][: limits.output_bytes]) for pipe in (process.stdout, process.stderr))
    ended.stdout, ended.stderr = out, err


def _feed(fd: int, left: memoryview) -> memoryview:
    """Write what the pipe takes; nothing is left where the program does not read."""
    try:
        return left[os.write(fd, left[:CHUNK]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return memoryview(b"")


def _read(fd: int) -> bytes | None:
    """Bytes from the pipe; empty at its end, None where there are none yet."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return None


def _passed(kept: dict[int, bytearray], limits: Limits, usage: Usage, seconds: float) -> tuple[Status | None, str]:
    """The limit that has been passed, and the reason in words."""
    if any(len(data) > limits.output_bytes for data in kept.values()):
        return "output", f"wrote more than {limits.output_bytes:,} bytes"
    if usage.memory_mb > limits.memory_mb:
        return "memory", f"its processes used {usage.memory_mb:.0f} MB, more than {limits.memory_mb}"
    if usage.cpu_seconds > limits.cpu_seconds:
        return "timeout", f"used more than {limits.cpu_seconds:g} s of processor time"
    if usage.threads > limits.processes:
        return "fail", f"ran {usage.threads} threads at a time, more than {limits.processes}"
    if seconds > limits.wall:
        return "timeout", f"took longer than {limits.wall:g} s"
    return None, ""


def _kill_tree(process: subprocess.Popen[bytes], seen: Iterable[tuple[int, int]]) -> None:
    """Kill a process and all its descendants, those in new sessions too, and return when they have ended.

    A process namespace goes with its first process, which has ended only once all others have. It is among those that
    were `seen`.
    """
    below = {one for one in seen if one[0] != process.pid}
    if process.poll() is None:  # else its number may be another's by now
        below.update((one.pid, one.start) for one in map(read_process, descendants(process.pid)) if one is not None)
        process.kill()
    process.wait()
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while left := {one for one in below if _runs(*one)}:
        for one in left:
            _kill(*one)
        if time.monotonic() > give_up:
            raise OSError(f"processes {sorted(pid for pid, _ in left)} of a sandbox do not end")
        time.sleep(POLL_SECONDS / 10)


def _runs(pid: int, start: int) -> bool:
    """Whether a process still runs; one that only waits for its parent to notice has ended."""
    found = read_process(pid)
    return found is not None and found.start == start and found.running


def _kill(pid: int, start: int) -> None:
    """Kill this process and no other: if it still has its number after the handle was opened, the handle is its own."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _runs(pid, start):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
