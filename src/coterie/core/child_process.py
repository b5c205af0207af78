"""Child processes that answer requests: every wait for them ends, by an answer, by their end or by a deadline.

A child shows signs of life (`heartbeat.py`). One that shows none for as long as a setting allows counts as hanging, is
killed and reported as `Lost`. Children end with their parent, however that ends.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection, util
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from coterie.core import heartbeat
from coterie.core.heartbeat import POLL, Activity, Heartbeat, Patience
from coterie.core.signals import SIGNALS, ctrl_c_blocked

MARGIN = 30.0  # seconds that a process may take to deal with a child that hangs
END = 5.0  # seconds that idle children may take to end
LARGE = 1 << 15  # bytes of a message that a pipe may not hold until it is read
PR_SET_PDEATHSIG = 1


class Lost(NamedTuple):
    """A child process that died or was killed because it showed no sign of life."""

    reason: str
    activity: Activity  # its last one
    hung: bool


class ChildProcess:
    """A child process that answers one request at a time."""

    def __init__(self, main: Callable[..., None], arguments: tuple[Any, ...], name: str, deadline: float) -> None:
        """Start `main(pipe, *arguments)`; `deadline`: seconds without a sign of life after which it counts as hanging.

        `name` is that of its world, for messages.
        """
        context = multiprocessing.get_context("spawn")
        self.name, self.patience, self.busy = name, Patience(deadline), False
        self.heartbeat = Heartbeat(context.RawArray(ctypes.c_longlong, 7))
        self.pipe, there = context.Pipe()
        by_main = threading.current_thread() is threading.main_thread()  # Linux looks at the thread, not the process
        given = (there, self.heartbeat.fields, by_main, main, arguments)
        self.process = context.Process(target=_run, args=given, name=name)
        with ctrl_c_blocked():
            self.process.start()
        there.close()
        # before multiprocessing joins its processes at this one's end, which would wait for one that hangs
        self._finalizer = util.Finalize(self, _kill, args=(self.pipe, self.process), exitpriority=100)

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def send(self, request: Any) -> None:
        """Send a request; `receive` reports a child that is dead."""
        self.busy = True
        self.patience.restart()
        message = ForkingPickler.dumps(request)
        if len(message) < LARGE:
            self._write(message)
        else:  # a child that does not read blocks the writer: the deadline counts meanwhile
            threading.Thread(target=self._write, args=(message,), daemon=True).start()

    def _write(self, message: Any) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:  # closed at either end
            return

    def receive(self) -> Any:
        """The reply, or `Lost`."""
        return receive_all([self])[0]

    def take(self) -> Any:
        """Read a reply that has come, or find out how the process has ended."""
        self.busy = False
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(END)
            self.kill()
            return Lost(describe_end(self.process.exitcode), self.heartbeat.read(), hung=False)

    def give_up(self) -> Lost:
        """Kill the process because it hangs."""
        self.kill()
        return Lost(f"no sign of life for {self.patience.allowed:g} s", self.patience.activity, hung=True)

    def kill(self) -> None:
        """End the process at once, and collect its exit status."""
        self.busy = False
        self._finalizer()


def receive_all(children: Sequence[ChildProcess]) -> list[Any]:
    """The replies of all children, or `Lost` for those that have died or hang."""
    replies: dict[int, Any] = {}
    while len(replies) < len(children):
        left = [index for index in range(len(children)) if index not in replies]
        found = receive_some([children[index] for index in left])
        replies |= {left[place]: reply for place, reply in found.items()}
    return [replies[index] for index in range(len(children))]


def receive_some(children: Sequence[ChildProcess]) -> dict[int, Any]:
    """Wait for a reply; returns those that have come, by the index of their child, with `Lost` for lost ones.

    Where another process waits for this one, it sees the activity of the child that is silent for longest: so it knows
    what is waited for, and grants the time. Raises `Interrupted` after a signal, if a child hangs.
    """
    replies: dict[int, Any] = {}
    places = {child.pipe: index for index, child in enumerate(children)}
    heartbeat.own.leave()
    while not replies:
        for pipe in connection.wait([*places], POLL):
            assert isinstance(pipe, Connection)
            replies[places[pipe]] = children[places[pipe]].take()
        for index, child in enumerate(children):
            if index not in replies and child.patience.look(child.heartbeat.read()):
                replies[index] = child.give_up()
            elif index not in replies:
                child.patience.leave_if_asked(child.name)
        if not replies and heartbeat.own.watched:
            _show([child.patience for child in children])
    heartbeat.own.leave()
    return replies


def _show(waiting: Sequence[Patience]) -> None:
    slowest = max(waiting, key=lambda patience: patience.silent)
    beats = any(patience.changed for patience in waiting)
    heartbeat.own.mirror(slowest.activity, slowest.allowed + MARGIN, beats)


def close_all(children: Sequence[ChildProcess]) -> None:
    """End the processes: idle ones by themselves within a moment, others at once."""
    for child in children:
        if child.busy:
            child.kill()
        else:
            child.pipe.close()
    end = time.monotonic() + END
    for child in children:
        child.process.join(max(0.0, end - time.monotonic()))
        child.kill()


def describe_end(code: int | None) -> str:
    """An exit code in words."""
    if code is None or code >= 0:
        return f"its process exited with code {code}"
    why = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}{why}"


def kill_children() -> None:
    """Kill all child processes of this one, whoever started them."""
    for process in multiprocessing.active_children():
        process.kill()


def _kill(pipe: Connection, process: Any) -> None:
    """Kill a process if it still runs, and collect its exit status."""
    pipe.close()
    if process.is_alive():
        process.kill()
    process.join()


# The child process -------------------------------------------------------------------------------------------


def _run(pipe: Connection, fields: Any, by_main: bool, main: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Main function of a child process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent handles them
    _end_with_parent(by_main)
    heartbeat.adopt(Heartbeat(fields))
    heartbeat.own.beat()  # it has started
    main(pipe, *arguments)


def _end_with_parent(by_main: bool) -> None:
    """End this process when its parent is gone, whatever it is doing.

    An idle one ends by itself, since its pipe closes. Linux kills it even where foreign code holds the interpreter, but
    counts the end of the starting thread as that of the parent: so only what a main thread has started is killed so.
    """
    if by_main and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child process
    connection.wait([parent.sentinel])
    time.sleep(END)
    os._exit(1)
