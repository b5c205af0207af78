"""Durations of runs: before their first step and in training, and durations as people say them."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.runs.run import Run, number


class Times(NamedTuple):
    """The seconds of a finished run."""

    before: float  # evaluation of step 0, with all that is loaded and compiled for it
    training: float  # iterations, with their evaluations
    steps_per_second: float  # of training


def times(run: Run, summary: dict[str, Any]) -> Times:
    """Read a run's times; the three add up to its steps and its `wall_s`."""
    steps, whole = number(run, summary, "env_steps"), number(run, summary, "wall_s")
    records = run.metrics()
    known = records and records[0].get("env_steps") == 0  # otherwise nothing says what step 0 took
    before = min(records[0]["wall_s"], whole) if known else 0.0
    return Times(before, whole - before, steps / max(whole - before, 1e-9))


def duration(seconds: float) -> str:
    """Seconds as people say them: 0.4 s, 3.5 s, 35 s, 2 min 5 s, 1 h 12 min."""
    if seconds < 1:
        return f"{float(f'{seconds:.1g}'):g} s"
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
