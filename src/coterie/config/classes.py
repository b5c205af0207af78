"""The classes that a config names, each with the base class that it must inherit from.

A config is read with these checks (`schema.part`), so that a class of a user's own is refused before anything is
built. `lookup.check_attributes` checks what a constructor must set once an object is there.
"""

from __future__ import annotations

from typing import Any

from coterie.config import registry
from coterie.core import lookup
from coterie.core.group import ActionShield, Advisor, Learner, Policy, Preference
from coterie.core.world import World


def world(name: str) -> type[World]:
    """The class of a world."""
    return of(registry.WORLDS, name)


def policy(name: str) -> type[Policy]:
    """The class of a policy."""
    return of(registry.POLICIES, name)


def learner(name: str) -> type[Learner]:
    """The class of a learner."""
    return of(registry.LEARNERS, name)


def preference(name: str) -> type[Preference]:
    """The class of a preference."""
    return of(registry.PREFERENCES, name)


def advisor(name: str) -> type[Advisor]:
    """The class of an advisor."""
    return of(registry.ADVISORS, name)


def shield(name: str) -> type[ActionShield]:
    """The class of an action shield."""
    return of(registry.SHIELDS, name)


def of(table: dict[str, str], name: str) -> Any:
    """The class behind a name of a table; raises `lookup.WrongClass` for one that is not of the table's kind."""
    found = lookup.look_up_class(table, name)
    bases: list[tuple[dict[str, str], type]] = [
        (registry.WORLDS, World),
        (registry.POLICIES, Policy),
        (registry.LEARNERS, Learner),
        (registry.PREFERENCES, Preference),
        (registry.ADVISORS, Advisor),
        (registry.SHIELDS, ActionShield),
    ]
    for known, base in bases:
        if known is table:
            lookup.refuse_wrong(found, base, name)
    if table is registry.LEARNERS:
        for attribute in ("teaches", "scopes", "preferences", "advice_modes", "panels"):
            if not isinstance(value := getattr(found, attribute), tuple):
                raise lookup.WrongClass(f"{name}.{attribute} must be a tuple, got {value!r}")
    return found
