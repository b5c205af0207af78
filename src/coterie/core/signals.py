"""Starting child processes that Ctrl-C does not reach: their parent handles it and ends them.

A terminal sends Ctrl-C to all processes of a command. A child that still imports its modules has no handler yet, and
would print a traceback.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT in this thread; processes started inside keep it blocked. It arrives here after the block."""
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
