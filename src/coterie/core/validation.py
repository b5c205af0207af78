"""Range checks for settings; each error names the setting, the allowed range and the value."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from numbers import Integral, Real


def whole(name: str, value: int) -> None:
    """Raise unless the value is an integer; 2.0 is rejected too, since a float count is likely a mistake."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise unless the value lies in [low, high]."""
    _number(name, value)
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value:g}")


def at_least(name: str, value: float, low: float) -> None:
    """Raise if the value is below `low`."""
    _number(name, value)
    if not value >= low:
        raise ValueError(f"{name} must be at least {low:g}, got {value:g}")


def positive(name: str, value: float) -> None:
    """Raise unless the value is above 0."""
    _number(name, value)
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value:g}")


def one_of(name: str, value: str, options: Collection[str]) -> None:
    """Raise unless the value is one of the options; settings made in Python are not checked against their `Literal`."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")


def fits_in_memory(what: str, size: float, cure: str) -> None:
    """Raise unless `size` bytes fit into this machine's memory; without this, the system ends the process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise ValueError(
            f"{what} needs about {size / 1e9:,.0f} GB of memory, this machine has {memory / 1e9:,.0f} GB; {cure}"
        )


@contextmanager
def allocating() -> Iterator[None]:
    """Turn PyTorch's error about memory that the system refuses, a RuntimeError, into a MemoryError."""
    try:
        yield
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise MemoryError("the networks do not fit into memory; choose fewer units or layers") from None


def _number(name: str, value: float) -> None:
    """Raise unless the value is a real number; settings made in Python are not type-checked."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
