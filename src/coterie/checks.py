"""Range checks for settings; each says what is allowed and what it got."""

from __future__ import annotations


def within(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside [low, high]."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value:g}")


def at_least(name: str, value: float, low: float) -> None:
    """Refuse a number below a bound."""
    if not value >= low:
        raise ValueError(f"{name} must be at least {low:g}, got {value:g}")


def positive(name: str, value: float) -> None:
    """Refuse zero and below."""
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value:g}")
