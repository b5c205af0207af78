"""Metrics of a run: metrics.jsonl (the source of truth), further sinks, a progress bar."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from typing import IO, Any

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.runs.checkpoint import naming
from coterie.runs.extras import extra
from coterie.runs.run import Run
from coterie.runs.trackers import SERVICES, Events, Sink, demand_packages


class Recorder:
    """Appends records; every line is flushed before the loop continues."""

    def __init__(self, run: Run, train: schema.TrainSettings, first_step: int, settings: dict[str, Any]) -> None:
        """`settings` are the run's, path -> value, for sinks that show them."""
        demand_packages(train.tracking)
        self.path = run.metrics_file
        self.file: IO[str] = open(self.path, "a")  # noqa: SIM115  # closed by close()
        self.sinks: list[Sink] = []
        if train.tensorboard:
            with extra(Events.title):
                self.sinks.append(Events(run.path / "tensorboard", first_step, settings))
        tracking = train.tracking or schema.TrackingSettings()
        for name in tracking.sinks:
            with extra(SERVICES[name].title):
                self.sinks.append(SERVICES[name](run, tracking, settings))

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; NaN and infinity are errors."""
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise CoterieError(f"metric '{name}' is {value}; the run stopped without saving it")
        with naming(self.path):
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        self.with_sinks(lambda sink: sink.write(record))

    def sync(self) -> None:
        """Sync everything written so far to disk."""
        with naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        self.with_sinks(lambda sink: sink.flush())

    def close(self) -> None:
        try:
            self.sync()
        finally:
            with naming(self.path):
                self.file.close()
        self.with_sinks(lambda sink: sink.close())

    def with_sinks(self, act: Callable[[Sink], None]) -> None:
        """Do something with every sink; a failure ends that sink, not the run."""
        sinks, self.sinks = self.sinks, []
        for sink in sinks:
            with extra(f"further {sink.title}"):
                act(sink)
                self.sinks.append(sink)


SLOW = 10.0  # seconds between lines; a shorter evaluation has none


class Progress:
    """A progress bar on a terminal, occasional lines elsewhere."""

    def __init__(self, total: int, done: int, quiet: bool) -> None:
        self.total, self.start, self.quiet = total, done, quiet
        self.bar: Any = None
        self.task: Any = None
        self.line = ""  # of the last step, which remains when the bar ends
        self.next_line, self.next_evaluation_line = 0.0, SLOW
        if not quiet:
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_terminal:
                from rich import progress as p
                from rich.table import Column

                rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # of 80 columns, bar and time keep theirs
                words = p.TextColumn("{task.description}", table_column=rest)
                columns = (p.BarColumn(14), p.TimeRemainingColumn(compact=True), words)
                self.bar = p.Progress(*columns, console=console, expand=True)
                self.task = self.bar.add_task("starting", total=total, completed=done)
                self.bar.start()

    def show(self, step: int, wall: float, words: str) -> None:
        """Show the progress."""
        line = "  ".join(filter(None, [f"{counted(step, self.total)} steps", words]))
        if self.bar is not None:
            self.line = line.replace("training: ", "")
            self.bar.update(self.task, completed=step, description=self.line)
        elif not self.quiet and (wall >= self.next_line or step >= self.total):
            print(f"{line}  {wall:.0f} s", file=sys.stderr, flush=True)
            self.next_line = wall + SLOW

    def show_evaluation(self, ended: int, episodes: int, steps: int, wall: float) -> None:
        """Show how far an evaluation is that takes `wall` seconds so far."""
        if wall < SLOW:  # a new one
            self.next_evaluation_line = SLOW
        if self.quiet or wall < self.next_evaluation_line:
            return
        self.next_evaluation_line = wall + (1 if self.bar is not None else SLOW)
        line = f"evaluating: {ended:,} of {episodes:,} episodes have ended, step {steps:,}"
        if self.bar is not None:
            self.bar.update(self.task, description=line)
        else:
            print(f"{line}  {wall:.0f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            if self.line:
                self.bar.update(self.task, description=self.line)
            self.bar.stop()


def counted(step: int, total: int) -> str:
    """Steps and their total, in thousands where there are many; every step of a run is written equally wide."""
    done, whole = (f"{step:,}", f"{total:,}") if total < 10_000 else (f"{step / 1e3:,.0f}k", f"{total / 1e3:,.0f}k")
    return f"{done:>{len(whole)}} of {whole}"
