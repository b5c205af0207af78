"""Ctrl-C and SIGTERM let a training finish its iteration and save; a second signal ends the process at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(threading.Event):
    """Set once a signal has asked the process to stop."""

    number: int | None = None  # of that signal

    def ask(self, number: int, frame: Any) -> None:
        """The handler of the first signal."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even where the parent process ignored it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.number = number
        self.set()

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a process stopped by a signal."""
        return 128 + (self.number or signal.SIGINT)


_present: Interruption | None = None  # of the outermost `interruptible`


@contextmanager
def interruptible(deliver: bool = True) -> Iterator[Interruption]:
    """Handle the signals until the end of the block; nested blocks share one `Interruption`.

    With `deliver`, a SIGTERM ends the process when the block has ended: a caller that knows nothing of it would go on.
    """
    global _present
    if _present is not None or threading.current_thread() is not threading.main_thread():
        yield _present or Interruption()
        return
    _present = interruption = Interruption()
    before = [signal.signal(number, interruption.ask) for number in SIGNALS]
    try:
        yield interruption
    finally:
        _present = None
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
    if deliver and interruption.number == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)
