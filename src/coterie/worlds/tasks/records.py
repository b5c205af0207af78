"""Problems from JSON Lines files: one object per line; every error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Unusable(ValueError):
    """A record is well formed, but the task cannot use it."""


def read_records(path: Path, convert: Callable[[Mapping[str, Any]], T], skip: bool = False) -> tuple[T, ...]:
    """All records of a file, converted; with `skip`, those that the task cannot use are left out."""
    found: list[T] = []
    left_out = ""
    for where, record in _lines(path):
        try:
            found.append(convert(record))
        except Unusable as error:
            left_out = f"{where}: {error}"
            if not skip:
                raise ValueError(f"problems: {left_out}; skip_unusable=true leaves such problems out") from None
        except ValueError as error:
            raise ValueError(f"problems: {where}: {error}") from None
    if not found:
        raise ValueError(f"problems: {path} has no problem that can be used{left_out and f' ({left_out})'}")
    return tuple(found)


def _lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each record, after the file and line that hold it."""
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"problems: cannot read {path} ({error.strerror}); give a JSON Lines file") from None
    with file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}, line {number}", parse_object(line, f"{path}, line {number}")
        except UnicodeDecodeError as error:
            raise ValueError(f"problems: {path} is not UTF-8 text ({error.reason})") from None


def parse_object(text: str, where: str) -> Mapping[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"problems: {where}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"problems: {where}: must be a JSON object, got {type(found).__name__}")
    return found


def field_of(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first of these fields that the record has."""
    for name in names:
        if record.get(name) is not None:
            return record[name]
    raise ValueError(f"no field {' or '.join(map(repr, names))}; it has {', '.join(map(repr, record)) or 'none'}")


def text_of(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The same; it must be text that is not empty."""
    found = field_of(record, names)
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"{' or '.join(map(repr, names))} must be text, got {found!r:.80}")
    return found.strip()
