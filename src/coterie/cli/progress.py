"""Progress of commands that work through a number of things: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

EVERY = 10.0  # seconds between lines


class Tasks:
    """Counts what is done, on standard error; quiet: nothing."""

    def __init__(self, total: int, things: str, quiet: bool = False, lines: bool = True) -> None:
        """`lines` False: only a bar, since the command itself prints a line for each."""
        self.total, self.things, self.quiet, self.lines, self.done = total, things, quiet, lines, 0
        self.began = self.last = time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> Tasks:
        if self.quiet:
            return self
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal:
            from rich import progress as p

            parts = (
                p.TextColumn("{task.description}"),
                p.BarColumn(None),
                p.MofNCompleteColumn(),
                p.TimeRemainingColumn(),
            )
            self.bar = p.Progress(*parts, console=console, expand=True, transient=True)
            self.task = self.bar.add_task(self.things, total=self.total, completed=self.done)
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    @contextmanager
    def doing(self, words: str) -> Iterator[None]:
        """Name on the bar what is under way; one more is done after it."""
        if self.bar is not None:
            self.bar.update(self.task, description=words[:40])
        yield
        self.advance()

    def advance(self) -> None:
        """One more is done."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif self.lines and not self.quiet and now - self.last >= EVERY:
            self.last = now
            print(f"{self.done} of {self.total} {self.things}, {now - self.began:.0f} s", file=sys.stderr, flush=True)
