"""Find classes by name: in a table, or as `package.module:Name`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import typing
from collections.abc import Iterable
from typing import Any, Literal

from coterie.core.own_code import describe_own_error
from coterie.core.settings import Settings
from coterie.core.types import CoterieError

Trust = Literal["shown", "signed", "all"]  # whose runs may name code: nobody's, this user's own, everybody's


def whose(trust: bool) -> Trust:
    """The runs that may name code: with `trust` all of them, else this user's own."""
    return "all" if trust else "signed"


class MissingAttribute(LookupError):
    """A module has no attribute of this name."""

    def __init__(self, module: str, attribute: str, suggestion: str) -> None:
        super().__init__(f"module '{module}' has no '{attribute}'{suggestion}")


_evaluated_hints = functools.cache(typing.get_type_hints)


def type_hints(of: Any) -> dict[str, Any]:
    """The annotations of a class or a function, evaluated once."""
    return _evaluated_hints(of)


def family(table: dict[str, str], name: str) -> tuple[str, str]:
    """Split `gymnasium/CartPole-v1` into the table's entry and what it is to load; '' for plain names."""
    head, slash, rest = name.partition("/")
    return (f"{head}/", rest) if slash and f"{head}/" in table else (name, "")


def split_address(text: str) -> tuple[str, str] | None:
    """Module and name of `package.module:Name`; None for any other text.

    Nothing else is ever imported by name, so what a config imports can be read off its texts (`config/trust.py`).
    """
    module, _, attribute = text.partition(":")
    names = [*module.split("."), attribute]
    return (module, attribute) if all(map(str.isidentifier, names)) else None


def look_up(table: dict[str, str], name: str) -> Any:
    """The class, function or object behind a name, or behind `package.module:Name`."""
    entry = family(table, name)[0]
    address = table.get(entry, entry)
    split = split_address(address)
    if split is None:
        module, dot, attribute = address.rpartition(".")
        hint = f"; did you mean '{module}:{attribute}'?" if dot and not {"/", ":"} & set(name) else ""
        raise LookupError(f"no '{name}' here (known: {', '.join(table)}; custom: package.module:Name){hint}")
    module, attribute = split
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        own = error.name in module.split(".")  # of a class of one's own; otherwise it imports a missing package
        cure = (
            "not found; start from the directory that holds it, or add that to PYTHONPATH" if own else "not installed"
        )
        raise LookupError(f"'{name}' needs the module '{error.name}', which is {cure}") from None
    except CoterieError:
        raise
    except Exception as error:  # a module of one's own may raise anything
        reason = describe_own_error(error)
        if reason is None:
            raise
        raise LookupError(f"module '{module}' cannot be imported: {reason}") from error
    try:
        return getattr(found, attribute)
    except AttributeError:
        raise MissingAttribute(module, attribute, suggest(attribute, _public(found))) from None


def _public(module: Any) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def name_of(table: dict[str, str], kind: type[Any]) -> str:
    """The name of a class: that in the table, or else `package.module:Name`."""
    address = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in table.items() if known == address), address)


def look_up_class(table: dict[str, str], name: str) -> Any:
    """The class or function behind a name; an object of another kind is refused."""
    found = look_up(table, name)
    if not callable(found):
        raise LookupError(f"'{name}' is neither a class nor a function, but {found!r:.60}")
    return found


class WrongClass(LookupError):
    """A class that does not inherit from the base class of its kind, or lacks some of its methods."""


def refuse_wrong(found: Any, base: type, name: str) -> None:
    """Raise `WrongClass` unless `found` is a class that inherits from `base` and has all its methods."""
    if not isinstance(found, type) or not issubclass(found, base):
        raise WrongClass(f"{name} must inherit from coterie.{base.__name__}")
    kind: Any = found
    if inspect.isabstract(kind):
        missing = sorted(kind.__abstractmethods__)
        methods = "the method" if len(missing) == 1 else "the methods"
        raise WrongClass(f"{name} lacks {methods} {' and '.join(missing)} of coterie.{base.__name__}")


def check_attributes(part: object, base: type) -> None:
    """Raise `ValueError` unless the constructor of a part has set every attribute that its base class declares."""
    missing = [name for name in inspect.get_annotations(base) if not hasattr(part, name)]
    if missing:
        raise ValueError(f"{type(part).__name__} must set {' and '.join(missing)}, as coterie.{base.__name__} says")


def settings_type(table: dict[str, str], name: str) -> type[Any]:
    """The settings dataclass that a named class takes."""
    hints = type_hints(look_up_class(table, name).__init__)
    if "settings" not in hints:
        raise LookupError(f"'{name}': its constructor has no annotated 'settings' parameter")
    found: type[Any] = hints["settings"]
    if not dataclasses.is_dataclass(found):
        raise LookupError(f"'{name}': its 'settings' must be annotated with a dataclass, not {found}")
    if not issubclass(found, Settings):
        raise LookupError(f"'{name}': its settings, {found.__name__}, must inherit from coterie.Settings")
    return found


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when something known is close, and not the word itself."""
    known = list(known)
    if word in known:
        return ""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
