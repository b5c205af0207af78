"""The forms of mathematical answers, and how they are read.

LaTeX and Unicode are brought into one spelling; then the first form that fits is taken.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coterie.worlds.tasks.mathematics.expressions import (
    MAX_LENGTH,
    Expression,
    NotAnExpression,
    parse,
    split,
)

MAX_ITEMS = 30  # of a list
RELATIONS = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "=": "=", "≠": "≠"}  # and what each is read from the right
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
LONGER = (  # spellings of one thing; the order matters
    (r"(?<=\d)\\[,!](?=\d{3}(?!\d))", ""),
    (r"\\(?:left|right|displaystyle|limits|bigl?|bigr)(?![a-zA-Z])|\\[!,;: ]|\$|~|^\\\(|\\\)$|^\\\[|\\\]$", " "),
    (r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname|mathbb)\s*\{([^{}]*)\}", r" \1 "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
    (r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}"),
    (r"√\s*(\d+|[a-zA-Z])", r"sqrt(\1)"),
    (r"√", "sqrt"),
    (r"\\(?:cdot|times)(?![a-zA-Z])|[×·⋅∗]", "*"),
    (r"\\div(?![a-zA-Z])|÷", "/"),
    (r"\\(?:leq?|leqslant)(?![a-zA-Z])|<=", "≤"),
    (r"\\(?:geq?|geqslant)(?![a-zA-Z])|>=", "≥"),
    (r"\\neq?(?![a-zA-Z])|!=", "≠"),
    (r"\\lt(?![a-zA-Z])", "<"),
    (r"\\gt(?![a-zA-Z])", ">"),
    (r"\\infty(?![a-zA-Z])|\binfinity\b|\binf\b|\boo\b", "∞"),
    (r"\\cup(?![a-zA-Z])", "∪"),
    (r"\\in(?![a-zA-Z])", "∈"),
    (r"\\pm(?![a-zA-Z])|\+/?-(?=\s*[\d(\\a-z])", "±"),
    (r"\\(?:lvert|rvert|vert)(?![a-zA-Z])", "|"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\circ(?![a-zA-Z])|°", " "),
    (r"\\\{", "⦃"),
    (r"\\\}", "⦄"),
    (r"\\([%#&])", r"\1"),
    (r"π", " pi "),
    (r"[−–]", "-"),
    (r"(?<=\d)\{,\}(?=\d)", ","),
)
UNIT = re.compile(r"(?<=[\d)}.])\s*([a-zA-Z]{2,}(?:\s*\^?\s*\{?[23]\}?)?(?:[\s/]+[a-zA-Z]+)*)$")
SHORT_UNITS = re.compile(  # no products of variables
    r"([cmk]m|[mk]g|lbs?|oz|ft|in|mi|yd|hrs?|min|secs?|ms|mph|kmh|deg|ml|cl)\b(?![a-z])"
)
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?(\s*%|\s+[a-zA-Z].*)?")
MIXED = re.compile(r"([+-]?)\s*(\d+)\s*(?:\\frac\{(\d+)\}\{(\d+)\}|\s(\d+)/(\d+))")
ASSIGNED = re.compile(r"([a-zA-Z](?:_\w+|_\{\w+\})?|[a-zA-Z]\([a-zA-Z]\))\s*[=∈]\s*(.+)", re.DOTALL)


@dataclass(frozen=True)
class Words:
    """An answer that is no mathematical expression."""

    text: str


@dataclass(frozen=True)
class Measured:
    """A number and its unit, or what it counts."""

    number: Expression
    unit: str


@dataclass(frozen=True)
class Assigned:
    """An equation such as x = 3, or f(x) = 2x."""

    name: str
    answer: Answer


@dataclass(frozen=True)
class Relation:
    """An equation or inequality: what its left side minus its right side is to 0."""

    sign: str
    difference: Expression
    swapped: Expression


@dataclass(frozen=True)
class Several:
    """A list, a set, a tuple, an interval or a union."""

    brackets: str  # "" for lists, "⦃⦄" for sets, "∪" for unions
    items: tuple[Answer, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets not in ("", "⦃⦄", "∪")


Answer = Expression | Words | Measured | Assigned | Relation | Several


def plain(text: str) -> str:
    """An answer in one spelling: LaTeX's and Unicode's signs in place of commands."""
    text = text.strip()
    text = re.sub(r"(?<=[\w)])[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda found: f"^({found.group().translate(SUPERSCRIPTS)})", text)
    text = "".join(
        f" {unicodedata.normalize('NFKC', c).replace('⁄', '/')} "
        if unicodedata.category(c) == "No"
        else unicodedata.normalize("NFKC", c)
        for c in text
    )
    text = re.sub(r"^\s*\\?\$|^\s*[€£¥]", "", text)
    for pattern, replacement in LONGER:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"\s+", " ", text).strip()
    return text.rstrip(".,;: ") if not text.endswith("...") else text


def read(text: str) -> Answer:
    """An answer, in the first form that it fits."""
    return _read(plain(text[: MAX_LENGTH + 1])) if len(text) <= MAX_LENGTH else Words(text)


def is_mathematical(answer: Answer) -> bool:
    """Whether it has no words in it, units excepted."""
    if isinstance(answer, Several):
        return all(map(is_mathematical, answer.items))
    return is_mathematical(answer.answer) if isinstance(answer, Assigned) else not isinstance(answer, Words)


def _read(text: str, depth: int = 0) -> Answer:
    if depth > 4:
        return Words(text)
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if "∪" in text:
        return _several("∪", text.split("∪"), depth)
    assigned = ASSIGNED.fullmatch(text)
    if assigned is not None and not _signs(assigned[2]):
        return Assigned(assigned[1].replace(" ", ""), _read(assigned[2].strip(), depth + 1))
    brackets, inner = _bracketed(text)
    if brackets in ("⦃⦄", "{}"):
        return _several("⦃⦄", split(inner), depth)
    if brackets and len(split(inner)) > 1:
        return _several(brackets, split(inner), depth)
    parts = [part for comma in split(text) for part in re.split(r";|\band\b|\bor\b", comma)]
    parts = [part.strip() for part in parts if part.strip()]
    if len(parts) > 1:
        return _several("", parts, depth)
    if text.count("±") == 1:
        return _several("", [text.replace("±", sign) for sign in "+-"], depth)
    return _related(text) or _valued(text)


def _several(brackets: str, parts: Sequence[str], depth: int) -> Answer:
    if len(parts) > MAX_ITEMS:
        return Words(", ".join(parts))
    return Several(brackets, tuple(_read(part.strip(), depth + 1) for part in parts if part.strip()))


def _bracketed(text: str) -> tuple[str, str]:
    """The brackets around a whole text and what is inside; ("", "") where there are none."""
    closing = {"(": ")]", "[": ")]", "⦃": "⦄", "{": "}"}.get(text[:1], "")
    if not closing or text[-1] not in closing:
        return "", ""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{⦃") - (character in ")]}⦄")
        if depth == 0:
            return (text[0] + text[-1], text[1:-1]) if at == len(text) - 1 else ("", "")
    return "", ""


def _signs(text: str) -> list[str]:
    return [character for character in text if character in RELATIONS]


def _related(text: str) -> Answer | None:
    """An equation or inequality; of a right calculation such as 12 + 7 = 19, the result."""
    signs = _signs(text)
    if len(signs) != 1:
        return None
    left, right = text.split(signs[0])
    try:
        found = Relation(signs[0], parse(f"({left}) - ({right})"), parse(f"({right}) - ({left})"))
        is_calculation = signs[0] == "=" and not found.difference.names and found.difference.value() == 0
        return parse(right) if is_calculation else found
    except NotAnExpression:
        return None


def _valued(text: str) -> Answer:
    """An expression, without units if need be; words otherwise."""
    if text in ("∞", "+∞", "-∞") or re.fullmatch(r"[A-Za-z]{3,}", text):
        return Words(text.lstrip("+"))
    mixed = MIXED.fullmatch(text)
    if mixed is not None:
        whole, over, under = mixed[2], mixed[3] or mixed[5], mixed[4] or mixed[6]
        if int(under):
            value = (int(whole) + Fraction(int(over), int(under))) * (-1 if mixed[1] == "-" else 1)
            return Expression(value, frozenset(), rounded=False, percent=False)
    unit = UNIT.search(text)
    try:
        if unit is None or not SHORT_UNITS.match(unit[1]):
            return parse(text)
    except NotAnExpression:
        pass
    try:
        return Words(text) if unit is None else Measured(parse(text[: unit.start()]), unit[1])
    except NotAnExpression:
        return Words(text)
