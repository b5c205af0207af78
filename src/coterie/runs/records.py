"""Reads metrics.jsonl: the records that can be read, where lines are missing between them, and a sentence about both.

A disk or a person may damage a line, and other programs may write records that lack something. What can be read is
read; the rest is said once in a process and shown as a gap in curves.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger("coterie")
NAMED = 5  # damaged lines and metrics that a warning names


class Records(NamedTuple):
    """The records of a run, in order."""

    rows: list[dict[str, Any]]  # every one has env_steps and wall_s; values that are no finite numbers are NaN
    gaps: frozenset[int]  # places in `rows` before which lines are damaged


def read_records(file: Path) -> Records:
    """The records in a file; none where there is no file. Damage is a warning, once in a process."""
    rows: list[dict[str, Any]] = []
    gaps, damaged = set[int](), list[int]()
    untimed, unknown = 0, dict[str, int]()  # records without wall_s; metric -> values that are no finite numbers
    count = 0
    for count, (_, record) in enumerate(_lines(file), 1):
        if record is None:
            damaged.append(count)
            gaps.add(len(rows))
            continue
        untimed += not _is_number(record.get("wall_s"))
        for name, value in record.items():
            if name != "wall_s" and not _is_number(value):
                unknown[name] = unknown.get(name, 0) + 1
        known = {name: value if _is_number(value) else math.nan for name, value in record.items()}
        rows.append({"wall_s": math.nan} | known)
    if damaged:
        which = f"line{'s' if len(damaged) > 1 else ''} {_some(list(map(str, damaged)))}"
        _warn(f"'{file}': {len(damaged)} of {count} lines cannot be read ({which}); curves have a gap there")
    if untimed:
        _warn(f"'{file}': {untimed} of {len(rows)} records have no wall_s; charts against time leave them out")
    if unknown:
        values, names = sum(unknown.values()), _some(list(unknown))
        _warn(f"'{file}': {values} value{'s' if values > 1 else ''} of {names} not finite; curves have a gap there")
    return Records(rows, frozenset(gaps))


def lines_until(file: Path, step: int) -> bytes:
    """The lines of the records up to a step as they are, damaged ones between them included."""
    kept, waiting = [], []
    for line, record in _lines(file):
        waiting.append(line)
        if record is not None:
            kept += waiting if record["env_steps"] <= step else []
            waiting = []
    return b"".join(line + b"\n" for line in kept)


def _lines(file: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Every line with its record, None where it holds none; a last line that is being written is left out."""
    if not file.is_file():  # a pipe of this name would keep its reader waiting
        return
    with open(file, "rb") as opened:
        for line in opened:
            record = _record(line)
            if record is not None or line.endswith(b"\n"):
                yield line.rstrip(b"\r\n"), record


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, not a text, or brackets without end
        return None
    steps = found.get("env_steps") if isinstance(found, dict) else None
    return found if isinstance(steps, int) and not isinstance(steps, bool) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@functools.cache
def _warn(said: str) -> None:
    """Say something once in this process: a report reads the records of a run several times."""
    log.warning("%s", said)
