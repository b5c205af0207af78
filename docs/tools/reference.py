"""Writes the reference of settings and of commands from the source, for the documentation site.

Every settings dataclass has one comment per field; these comments, the types and the defaults become tables. Run it to
see the Markdown: `python docs/tools/reference.py`. `hooks.py` puts the same text into the pages when the site is built.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.core import TyperGroup

from coterie.cli.entry import app
from coterie.config import registry
from coterie.config.schema import GroupConfig, Part, SeatedRun, TrainSettings
from coterie.core import lookup
from coterie.lm.ask.loading import LMSettings

PARTS = {
    "world": registry.WORLDS,
    "policy": registry.POLICIES,
    "learner": registry.LEARNERS,
    "preference": registry.PREFERENCES,
    "advisor": registry.ADVISORS,
    "constraints": registry.SHIELDS,
}
ORDER = (
    "list",
    "train",
    "resume",
    "eval",
    "watch",
    "report",
    "match",
    "compare",
    "rate",
    "exploit",
    "tune",
    "export",
    "config",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting: its name, type, default and the comment in the source."""

    name: str
    kind: str
    default: str
    meaning: str


# Reading the source -----------------------------------------------------------------------------------


@functools.cache
def comments(settings: type) -> dict[str, str]:
    """The comment of every field of a dataclass, inherited fields included."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _own_comments(base)
    return found


def _own_comments(settings: type) -> dict[str, str]:
    text = textwrap.dedent(inspect.getsource(settings))
    said: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            said[token.start[0]] = re.sub(r"^#\s*(type: ignore\S*\s*#?\s*)?", "", token.string)
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            words = [said[n] for n in range(line.lineno, (line.end_lineno or line.lineno) + 1) if n in said]
            above = line.lineno - 1
            while not words and above in said and text.splitlines()[above - 1].lstrip().startswith("#"):
                words.insert(0, said[above])
                above -= 1
            found[line.target.id] = re.sub(r"\bNone\b", "null", " ".join(words))
    return found


def rows(settings: type) -> list[Row]:
    """One row for each setting of a dataclass."""
    hints = typing.get_type_hints(settings)
    inner = dict(nested(settings))
    links = {name: f"[section](#{slug(one)})" for name, one in inner.items()}
    return [
        Row(
            spec.name,
            kind_of(hints[spec.name]).replace("section", links.get(spec.name, "section")),
            default_of(spec),
            comments(settings).get(spec.name) or (first_sentence(inner[spec.name]) if spec.name in inner else ""),
        )
        for spec in dataclasses.fields(settings)
    ]


def slug(settings: type) -> str:
    """The anchor of a dataclass's section."""
    heading = headings().get(LMSettings if issubclass(settings, LMSettings) else settings, "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading)).strip("-").lower()


def nested(settings: type) -> Iterator[tuple[str, type]]:
    """Fields that are settings themselves, with their dataclass."""
    for name, hint in typing.get_type_hints(settings).items():
        for option in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(option) and isinstance(option, type) and option not in (Part, SeatedRun):
                yield name, option


def kind_of(hint: Any) -> str:
    """A type as a reader of YAML would say it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "null"
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(kind_of(one) for one in inner))
    if origin in (tuple, list):
        return f"list of {kind_of(inner[0])}" if inner else "list"
    if origin is dict or hint is dict:
        return "mapping"
    if dataclasses.is_dataclass(hint):
        return "section"
    names = {int: "integer", float: "number", bool: "true, false", str: "text"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def default_of(spec: dataclasses.Field[Any]) -> str:
    """A field's default as YAML."""
    made = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
    if isinstance(made, LMSettings):
        return f"`{made.name}`"
    if dataclasses.is_dataclass(made):
        return "its defaults"
    return "required" if made is dataclasses.MISSING else f"`{_yaml(made)}`"


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_yaml(one) for one in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


# Sections ---------------------------------------------------------------------------------------------


def sections() -> Iterator[tuple[str, str, type]]:
    """Heading, purpose and dataclass of every section of the reference."""
    yield "train", "The training loop.", TrainSettings
    yield from _below("train", TrainSettings)
    yield "groups.NAME", "One group of agents.", GroupConfig
    yield "groups.NAME, policy of a run", "`policy: {run: runs/a}` seats the agents of a finished run.", SeatedRun
    for part, table in PARTS.items():
        for name in table:
            shown = f"{name}NAME" if name.endswith("/") else name
            settings = lookup.settings_type(table, name)
            if not dataclasses.fields(settings):
                continue
            yield f"{part}: {shown}", first_sentence(_class_of(table[name])), settings
            yield from _below(f"{part}: {shown}", settings)
    yield "lm", "A language model, wherever a setting is called `lm`.", LMSettings
    yield from _below("lm", LMSettings)


@functools.cache
def headings() -> dict[type, str]:
    """Where each dataclass is documented: a type that several parts share, once."""
    found: dict[type, str] = {}
    for heading, _, settings in sections():
        found.setdefault(settings, heading)
    return found


def _below(heading: str, settings: type) -> Iterator[tuple[str, str, type]]:
    for name, inner in nested(settings):
        if not issubclass(inner, LMSettings):
            yield f"{heading}, {name}", first_sentence(inner), inner
            yield from _below(f"{heading}, {name}", inner)


def _class_of(target: str) -> type:
    module, name = target.split(":")
    return typing.cast(type, getattr(__import__(module, fromlist=[name]), name))


def first_sentence(kind: type) -> str:
    """The first line of a class's docstring, unless dataclasses wrote it."""
    text = (kind.__doc__ or "").strip()
    return "" if text.startswith(f"{kind.__name__}(") else text.split("\n")[0]


def settings_page() -> str:
    """Every setting as Markdown."""
    parts = []
    for heading, purpose, settings in sections():
        if headings()[settings] != heading:
            continue
        parts.append(f"{'###' if ', ' in heading else '##'} {heading}\n")
        if purpose:
            parts.append(f"{purpose}\n")
        parts.append(f"{table_of(rows(settings))}\n")
    return "\n".join(parts)


def table_of(shown: list[Row]) -> str:
    """Rows as a Markdown table."""
    lines = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    for row in shown:
        cells = (f"`{row.name}`", row.kind, row.default, row.meaning)
        lines.append(row_of(cells))
    return "\n".join(lines)


def row_of(cells: typing.Iterable[str]) -> str:
    """Cells as a row of a Markdown table. A bar ends a cell, but not inside code."""
    return "| " + " | ".join(re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", cell) for cell in cells) + " |"


# Commands ---------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its arguments and options as Markdown."""
    root = typer.main.get_command(app)
    parts = []
    for name, command in _commands(root, "coterie"):
        parts.append(f"## {name}\n\n{(command.help or '').strip()}\n")
        lines = ["| argument, option | default | meaning |", "|---|---|---|"]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            option = parameter.param_type_name == "option"
            word = ", ".join(parameter.opts) if option else parameter.metavar or str(parameter.name).upper()
            default = "" if parameter.default in (None, False, (), []) else f"`{parameter.default}`"
            cells = (f"`{word}`", default, parameter.help or "")
            lines.append(row_of(cells))
        parts.append("\n".join(lines) + "\n" if len(lines) > 2 else "")
    return "\n".join(parts)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        known = {word: place for place, word in enumerate(ORDER)}
        for word, below in sorted(command.commands.items(), key=lambda item: known.get(item[0], len(known))):
            yield from _commands(below, f"{name} {word}")
    else:
        yield name, command


if __name__ == "__main__":
    print(settings_page())
    print(commands_page())
