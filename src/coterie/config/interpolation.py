"""Interpolations of settings: `${seed}` refers to another setting, `${oc.env:NAME}` calls a resolver of OmegaConf.

References are plain data. A call reads something outside of the config, such as the environment, so it is carried out
in memory, where the config is played or trained, and its value is never written to a file. A reference with another
interpolation inside (`${groups.${oc.env:NAME}.policy}`) counts as a call.
"""

from __future__ import annotations

import copy
import functools
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import OmegaConfGrammarParser, parse

BEGIN = "${"
REFERENCE = OmegaConfGrammarParser.InterpolationNodeContext
CALL = OmegaConfGrammarParser.InterpolationResolverContext


Path = tuple[str, ...]  # names of sections, and of the setting


class Interpolated(NamedTuple):
    """Settings without references."""

    settings: dict[str, Any]
    calls: dict[Path, Any]  # text, or list with texts, in which calls stand; a reference to a call is that call
    literal: dict[Path, Any]  # texts that only look like interpolations: `\\${x}` says `${x}`


def interpolate(layer: dict[str, Any], call: bool) -> Interpolated:
    """Settings with their references replaced; with `call` the calls too, else those stay as they are written."""
    if BEGIN not in repr(layer):  # the usual case, and a hundred times as fast
        return Interpolated(copy.deepcopy(layer), {}, {})
    token, written = secrets.token_hex(8), list[str]()  # marks stand for calls; nobody can write one

    def marked(text: str) -> str:
        if not _calls(text):
            return text
        written.append(text)
        return f"<{token}:{len(written) - 1}>"

    def unmarked(text: str) -> str:
        for number, call_ in enumerate(written):
            text = text.replace(f"<{token}:{number}>", call_)
        return text

    known = _resolved(_map(layer, marked))
    calls = {path: _map(value, unmarked) for path, value in _leaves(known) if token in repr(value)}
    literal = {path: _map(value, _escaped) for path, value in _leaves(known) if BEGIN in repr(value)}
    return Interpolated(_resolved(layer) if call else _map(known, unmarked), calls, literal)


def _resolved(layer: Any) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(layer), resolve=True))


def _escaped(text: str) -> str:
    return text.replace(BEGIN, "\\" + BEGIN)


@functools.lru_cache(256)
def _calls(text: str) -> bool:
    """Whether a text calls a resolver; one that OmegaConf cannot read does not."""
    if BEGIN not in text:
        return False
    try:
        return _has_call(parse(text), False)
    except OmegaConfBaseException:
        return False


def _has_call(node: Any, inside: bool) -> bool:
    if isinstance(node, CALL) or (inside and isinstance(node, REFERENCE)):
        return True
    inside = inside or isinstance(node, REFERENCE)
    return any(_has_call(child, inside) for child in getattr(node, "children", None) or ())  # tokens have none


def _map(value: Any, function: Callable[[str], str]) -> Any:
    """Nested settings with every text replaced."""
    if isinstance(value, dict):
        return {key: _map(entry, function) for key, entry in value.items()}
    if isinstance(value, list):
        return [_map(entry, function) for entry in value]
    return function(value) if isinstance(value, str) else value


def _leaves(settings: dict[str, Any], path: Path = ()) -> list[tuple[Path, Any]]:
    """Settings by their path; a list is one."""
    found: list[tuple[Path, Any]] = []
    for name, value in settings.items():
        at = (*path, str(name))
        found += _leaves(value, at) if isinstance(value, dict) else [(at, value)]
    return found
