"""Metrics of a run: metrics.jsonl (the source of truth), TensorBoard, a progress bar."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from coterie.core.types import CoterieError
from coterie.training.checkpoint import naming
from coterie.training.extras import extra
from coterie.training.run import Run


class Events:
    """TensorBoard files: one event per record."""

    def __init__(self, path: Path, first_step: int) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError:
            raise CoterieError("pip install 'coterie[tensorboard]'") from None
        self.writer = EventFileWriter(str(path))
        self.add(
            first_step, session_log=SessionLog(status=SessionLog.START)
        )  # events of a killed run after this step are void

    def add(self, step: int, **contents: Any) -> None:
        """Write one event."""
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(wall_time=time.time(), step=step, **contents))

    def write(self, record: dict[str, Any]) -> None:
        """Write one record."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in record.items() if name not in ("iteration", "env_steps")}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.add(record["env_steps"], summary=Summary(value=values))


class Recorder:
    """Appends records; every line is flushed before the loop continues."""

    def __init__(self, run: Run, tensorboard: bool, first_step: int) -> None:
        self.path = run.metrics_file
        self.file: IO[str] = open(self.path, "a")  # noqa: SIM115  # closed by close()
        self.events: Events | None = None
        if tensorboard:
            with extra("TensorBoard files"):
                self.events = Events(run.path / "tensorboard", first_step)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; NaN and infinity are errors."""
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise CoterieError(f"metric '{name}' is {value}; the run stopped without saving it")
        with naming(self.path):
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        self.with_events(lambda events: events.write(record))

    def sync(self) -> None:
        """Sync everything written so far to disk."""
        with naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        self.with_events(lambda events: events.writer.flush())

    def close(self) -> None:
        try:
            self.sync()
        finally:
            with naming(self.path):
                self.file.close()
        self.with_events(lambda events: events.writer.close())

    def with_events(self, act: Callable[[Events], None]) -> None:
        """Do something with the TensorBoard files; a failure ends them, not the run."""
        events, self.events = self.events, None
        if events is not None:
            with extra("further TensorBoard files"):
                act(events)
                self.events = events


class Progress:
    """A progress bar on a terminal, occasional lines elsewhere."""

    def __init__(self, total: int, done: int, quiet: bool) -> None:
        self.total, self.start, self.quiet = total, done, quiet
        self.bar: Any = None
        self.task: Any = None
        self.next_line = 0.0
        if not quiet:
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_terminal:
                from rich import progress as p

                columns = (p.BarColumn(None), p.TextColumn("{task.description}"), p.TimeRemainingColumn())
                self.bar = p.Progress(*columns, console=console, expand=True)
                self.task = self.bar.add_task("starting", total=total, completed=done)
                self.bar.start()

    def show(self, step: int, wall: float, words: str) -> None:
        """Show the progress."""
        line = "  ".join(filter(None, [f"{counted(step, self.total)} steps", words]))
        if self.bar is not None:
            self.bar.update(self.task, completed=step, description=line)
        elif not self.quiet and (wall >= self.next_line or step >= self.total):
            print(f"{line}  {wall:.0f} s", file=sys.stderr, flush=True)
            self.next_line = wall + 10

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def counted(step: int, total: int) -> str:
    """Steps and their total, in thousands where there are many; every step of a run is written equally wide."""
    done, whole = (f"{step:,}", f"{total:,}") if total < 10_000 else (f"{step / 1e3:,.0f}k", f"{total / 1e3:,.0f}k")
    return f"{done:>{len(whole)}} of {whole}"
