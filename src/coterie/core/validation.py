"""Range checks for settings; each says what is allowed and what it got."""

from __future__ import annotations

from numbers import Integral, Real


def whole(name: str, value: int) -> None:
    """Refuse what is no whole number, also 2.0: a count written so is likely a mistake."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")


def within(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside [low, high]."""
    _number(name, value)
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value:g}")


def at_least(name: str, value: float, low: float) -> None:
    """Refuse a number below a bound."""
    _number(name, value)
    if not value >= low:
        raise ValueError(f"{name} must be at least {low:g}, got {value:g}")


def positive(name: str, value: float) -> None:
    """Refuse zero and below."""
    _number(name, value)
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value:g}")


def _number(name: str, value: float) -> None:
    """Configs are typed; from Python anything may come."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
