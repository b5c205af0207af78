"""A report's head: the command, date, version, machine and duration of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.runs.provenance import Start, starts
from coterie.runs.run import Run
from coterie.runs.times import duration
from coterie.studies import html


def report_section(runs: Sequence[Run]) -> Iterable[str]:
    """A table of where the runs come from; what no run knows is left out."""
    found = [(run, starts(run)) for run in runs]
    first = [began[0] for _, began in found if began]
    rows = [*_facts(first)]
    again = sum(len(began) - 1 for _, began in found if began)
    rows += [["resumed", f"{again} time{'s' if again > 1 else ''}"]] if again else []
    rows += _durations(runs)
    rows.append(["run" if len(runs) == 1 else "runs", _paths(runs)])
    yield html.table([], rows, "words")


def _facts(first: Sequence[Start]) -> Iterable[list[str]]:
    """Each fact once; of those in which runs differ the first, and how many more there are."""
    if not first:
        return
    yield ["command", _several([one.command for one in first])]
    dates = sorted({one.date for one in first})
    yield ["date", dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"]
    yield ["version", _several([f"coterie {one.version}, Python {one.python}" for one in first])]
    yield ["machine", _several([one.machine for one in first])]


def _several(words: Sequence[str]) -> str:
    different = list(dict.fromkeys(words))
    return different[0] + (f" (and {len(different) - 1} other)" if len(different) > 1 else "")


def _durations(runs: Sequence[Run]) -> list[list[str]]:
    known = [summary["wall_s"] for run in runs if (summary := run.summary()) is not None and "wall_s" in summary]
    if not known:
        return []
    each = duration(known[0]) if len(known) == 1 else f"{duration(sum(known))} in all, {_range(known)} each"
    return [["duration", each]]


def _range(seconds: Sequence[float]) -> str:
    low, high = duration(min(seconds)), duration(max(seconds))
    return low if low == high else f"{low} to {high}"


def _paths(runs: Sequence[Run]) -> str:
    names = [str(run.path) for run in runs]
    shown = names if len(names) <= 4 else [*names[:3], f"and {len(names) - 3} more"]
    return ", ".join(shown)
