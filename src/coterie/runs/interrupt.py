"""Ctrl-C and SIGTERM let a training finish its iteration and save; a second signal ends the process at once.

Evaluations end at the step in which a signal comes (`leave_if_asked`): what they were for is done after a resume.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ACKNOWLEDGED = b"coterie: stopping; what has been learned is saved first, a second signal leaves at once\n"


class Interrupted(KeyboardInterrupt):
    """A signal, Ctrl-C or SIGTERM, came while episodes were played."""


class Interruption(threading.Event):
    """Set once a signal has asked the process to stop."""

    number: int | None = None  # of that signal
    announces = True  # whether it answers the signal with a line

    def ask(self, number: int, frame: Any) -> None:
        """The handler of the first signal."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even where the parent process ignored it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.number = number
        self.set()
        if self.announces:
            os.write(2, ACKNOWLEDGED)  # sys.stderr may be in the middle of another line

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
    interruption.announces = announce
    before = [signal.signal(number, interruption.ask) for number in SIGNALS]
    left: Interrupted | None = None
    try:
        yield interruption
    except Interrupted as interrupted:
        left = interrupted
    except SystemError as error:
        if is_ctrl_c(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        _present = None
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
    if deliver and interruption.number == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)
    if left is not None:
        raise left
