"""Search spaces for `coterie tune`: ranges to try for some fields of a settings dataclass.

`core/settings.py` reads them from settings. How they are tried is in `studies/tune/`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Real:
    """A real number between two bounds, both inclusive; `log` samples on a logarithmic scale."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high, self.log, 0.0)

    def including(self, value: Any) -> Real:
        """The range widened to include a value; a log scale that cannot include it becomes linear."""
        _check_number(value, (int, float))
        low, high = min(self.low, float(value)), max(self.high, float(value))
        return Real(low, high, self.log and low > 0)


@dataclass(frozen=True)
class Whole:
    """A whole number between two bounds, both inclusive; `log` samples on a logarithmic scale."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            _check_number(bound, (int,))
        _check_bounds(self.low, self.high, self.log, 1)

    def including(self, value: Any) -> Whole:
        """The range widened to include a value; a log scale that cannot include it becomes linear."""
        _check_number(value, (int,))
        low, high = min(self.low, value), max(self.high, value)
        return Whole(low, high, self.log and low >= 1)


@dataclass(frozen=True)
class Choice:
    """One of several unordered values of any type that a config can hold."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        texts = [written(value) for value in self.values]
        if len(texts) < 2 or len(set(texts)) < len(texts):
            raise ValueError(f"a choice needs at least two different values, got {self.values!r}")

    def including(self, value: Any) -> Choice:
        """The choice with a value added, unless it is there already."""
        known = written(value) in map(written, self.values)
        return self if known else Choice((*self.values, value))


Range = Real | Whole | Choice
Space = Mapping[str, Range]  # a setting's name, or its path, -> the values to try


def written(value: Any) -> str:
    """A value as JSON text: equal texts are equal values, and tuples are lists."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(f"cannot be written in a config: {value!r}") from None


def range_to_dict(known: Range) -> dict[str, Any]:
    """A range as JSON."""
    made: dict[str, Any] = json.loads(json.dumps({"kind": type(known).__name__} | dataclasses.asdict(known)))
    return made


def _check_bounds(low: float, high: float, log: bool, least: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"a range needs finite bounds, low below high, got {low!r} and {high!r}")
    if log and not (low > 0 and low >= least):
        raise ValueError(f"a log scale needs bounds above 0, got {low!r} and {high!r}")


def _check_number(value: Any, types: tuple[type, ...]) -> None:
    if not isinstance(value, types) or isinstance(value, bool):
        raise ValueError(f"a range of numbers cannot hold {value!r}")
