"""Signals that stop a command: whether one came, and child processes that Ctrl-C does not reach.

A terminal sends Ctrl-C to all processes of a command. Their parent handles it and ends them: a child that still imports
its modules has no handler yet, and would print a traceback.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SIGNALS = (signal.SIGINT, signal.SIGTERM)
stop_asked = threading.Event()  # a signal has asked this process to stop


class Interrupted(KeyboardInterrupt):
    """A signal, Ctrl-C or SIGTERM, came while episodes were played."""


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT in this thread; processes started inside keep it blocked. It arrives here after the block."""
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
