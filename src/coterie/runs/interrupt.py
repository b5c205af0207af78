"""Ctrl-C and SIGTERM let a training finish its iteration and save; a second signal ends the process at once.

Evaluations end at the step in which a signal comes (`leave_if_asked`): what they were for is done after a resume.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core import heartbeat, signals
from coterie.core.child_process import kill_children
from coterie.core.heartbeat import LIMIT, POLL, Patience
from coterie.core.signals import SIGNALS, Interrupted

log = logging.getLogger("coterie")
LAST = 5.0  # seconds that the end after a second signal may take
ACKNOWLEDGED = b"coterie: stopping; what has been learned is saved first, a second signal leaves at once\n"


class Interruption(threading.Event):
    """Set once a signal has asked the process to stop."""

    number: int | None = None  # of that signal
    announces = True  # whether it answers the signal with a line

    def ask(self, number: int, frame: Any) -> None:
        """The handler of the first signal."""
        signal.signal(signal.SIGINT, self.leave)  # even where the parent process ignored it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.number = number
        self.set()
        signals.stop_asked.set()
        if self.announces:
            os.write(2, ACKNOWLEDGED)  # sys.stderr may be in the middle of another line

    def leave(self, number: int, frame: Any) -> None:
        """The handler of later signals."""
        if _watch is not None and _watch.gave_up is not None:
            raise Interrupted(_watch.gave_up)
        raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a process stopped by a signal."""
        return 128 + (self.number or signal.SIGINT)


_present: Interruption | None = None  # of the outermost `interruptible`


def leave_if_asked() -> None:
    """Raise `Interrupted` once a signal has come inside `interruptible`."""
    if _present is not None and _present.is_set():
        raise Interrupted("stopped by a signal")


def is_ctrl_c(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C in compiled code, which makes a KeyboardInterrupt the cause of SystemErrors."""
    while isinstance(error, SystemError):
        error = error.__cause__
        if isinstance(error, KeyboardInterrupt):
            return True
    return False


class Watch(threading.Thread):
    """Names an environment of this process that hangs, and ends the process where signals cannot.

    A thread cannot end a step of an environment. Once the step has taken as long as `world.timeout` allows, a warning
    names it. After a signal the main thread is interrupted in it; where even that does nothing, as in code that does
    not return to Python, the process and its children are killed. Code that also keeps the interpreter to itself stops
    this thread, too: such environments belong into child processes.
    """

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self.patience = Patience(LIMIT)
        self.said = -1  # beats of the activity that was named
        self.begin()
        self.reading, self.writing = os.pipe()
        for end in (self.reading, self.writing):
            os.set_blocking(end, False)

    def begin(self) -> None:
        """Forget earlier signals."""
        self.signals, self.since_interrupted, self.since_second = 0, 0.0, 0.0
        self.gave_up: str | None = None  # what does not end, although a signal has asked for it

    def run(self) -> None:
        while True:
            if select.select([self.reading], [], [], POLL)[0]:
                came = os.read(self.reading, 64)
                if not came:
                    os.close(self.reading)
                    return
                self.signals += sum(number in SIGNALS for number in came)
            self.patience.look(heartbeat.own.read())
            self.look()

    def look(self) -> None:
        """Do what the present silence and the signals so far ask for."""
        activity, silent = self.patience.activity, self.patience.silent
        where = activity.where(heartbeat.own.world)
        if self.signals < 1 and self.gave_up is None:
            if activity.in_world and silent >= self.patience.allowed and self.said != activity.beats:
                self.said = activity.beats
                log.warning("%s", self.warning(where))
            return
        if self.signals > 1:
            self.since_second += POLL
            if self.since_second >= LAST:
                self.end(where)
        if activity.in_world and silent >= heartbeat.GRACE:
            if self.gave_up is None:
                self.gave_up = f"stopped by a signal; {where}: no sign of life for {silent:.0f} s"
                self.signals -= 1  # this one is not the person's
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self.since_interrupted += POLL
            if self.since_interrupted >= LAST:
                self.end(where)

    def warning(self, where: str) -> str:
        """The sentence about an environment that hangs in this process."""
        cure = "Ctrl-C ends it"
        if self.patience.activity.limit:
            cure += "; world.processes=1 lets such environments be killed, world.restarts=N lets the run go on after it"
        return f"{where}: no sign of life for {self.patience.silent:.0f} s; {cure}"

    def end(self, where: str) -> None:
        """End this process and its children at once."""
        what = f": {where} did not end" if self.patience.activity.in_world else " after a second signal"
        os.write(2, f"coterie: killed at once{what}\n".encode())
        kill_children()
        os._exit((_present or Interruption()).exit_code)


_watch: Watch | None = None


@contextmanager
def watching() -> Iterator[None]:
    """Name environments of this process that hang until the end of the block, and see to it that signals end them."""
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = watch = Watch()
    before = signal.set_wakeup_fd(watch.writing, warn_on_full_buffer=False)  # also while no handler can run
    watch.start()
    try:
        yield
    finally:
        _watch = None
        signal.set_wakeup_fd(before)
        os.close(watch.writing)  # ends the thread
        watch.join()


@contextmanager
def interruptible(deliver: bool = True, announce: bool = True) -> Iterator[Interruption]:
    """Handle the signals until the end of the block; nested blocks share one `Interruption`.

    With `deliver`, a SIGTERM ends the process when the block has ended: a caller that knows nothing of it would go on.
    With `announce`, the first signal is answered with a line.
    """
    global _present
    if _present is not None or threading.current_thread() is not threading.main_thread():
        yield _present or Interruption()
        return
    _present = interruption = Interruption()
    if _watch is not None:
        _watch.begin()
    interruption.announces = announce
    before = [signal.signal(number, interruption.ask) for number in SIGNALS]
    left: Interrupted | None = None
    try:
        with watching():
            yield interruption
    except Interrupted as interrupted:
        left = interrupted
    except SystemError as error:
        if is_ctrl_c(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        _present = None
        signals.stop_asked.clear()
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
    if deliver and interruption.number == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)
    if left is not None:
        raise left
