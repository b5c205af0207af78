"""Exit codes of commands that a signal has stopped: 130 for Ctrl-C, 143 for SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.runs.interrupt import Interruption


class Stopped(SystemExit):
    """The command stopped early, after saving; it has printed how to continue."""


@contextmanager
def stoppable() -> Iterator[Interruption]:
    """Let a command save its work after a signal; an error that follows is printed and sets the signal's exit code."""
    from coterie.core.types import CoterieError
    from coterie.runs.interrupt import Interrupted, interruptible

    with interruptible(deliver=False) as interrupted:
        try:
            yield interrupted
        except Interrupted as left:
            print(f"coterie: {left}", file=sys.stderr)
            raise Stopped(interrupted.exit_code) from None
        except CoterieError as error:
            if not interrupted.is_set():
                raise
            print(f"coterie: {error}", file=sys.stderr)
            raise Stopped(interrupted.exit_code) from None
