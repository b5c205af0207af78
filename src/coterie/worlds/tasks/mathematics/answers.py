"""Compare mathematical answers: numbers, expressions, equations, lists, sets, tuples and intervals.

Expressions are equal where their values are, exactly for whole numbers and fractions, within a tolerance for rounded
ones, and at several points where they have variables. All other texts are compared as texts.

Where the expected answer is a number, a given one must be a number too and not a calculation, or the question itself
would answer it: `12/4` is not the answer 3, and `3x = 9` is not `x = 3`.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coterie.worlds.tasks.mathematics.expressions import (
    MAX_LENGTH,
    Expression,
    NotAnExpression,
    Number,
    parse,
    split,
)

TOLERANCE = 1e-6  # relative
NOISE = 1e-9  # of floating-point numbers
POINTS = 6  # at which expressions with variables are compared
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


# Reading ---------------------------------------------------------------------------------------------


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


# Comparing -------------------------------------------------------------------------------------------


def equal(expected: str, given: str, tolerance: float = TOLERANCE) -> bool:
    """Whether a given answer is the expected one."""
    return _squeezed(expected) == _squeezed(given) or _equal(read(expected), read(given), tolerance)


def repeats(question: str, expected: str, given: str) -> bool:
    """Whether a calculation or equation was copied from the question and is not written like the expected answer."""
    copied = _squeezed(given)
    if copied == _squeezed(expected) or copied not in re.sub(r"\s+", "", plain(question)).casefold():
        return False
    found = read(given)
    return isinstance(found, Relation | Several) or (isinstance(found, Expression) and not found.evaluated)


def _squeezed(text: str) -> str:
    """Text without differences in spaces, spelling and case; numbers stay apart."""
    text = text if len(text) > MAX_LENGTH else plain(text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).casefold()


def _equal(expected: Answer, given: Answer, tolerance: float) -> bool:
    match expected, given:
        case Assigned(), Assigned():
            return expected.name == given.name and _equal(expected.answer, given.answer, tolerance)
        case (Assigned(), Relation()) | (Relation(), Assigned()):
            if isinstance(expected, Assigned) and _is_number(expected.answer):
                return False
            sides = [_as_relation(side) if isinstance(side, Assigned) else side for side in (expected, given)]
            return all(isinstance(s, Relation) for s in sides) and _same_relation(*sides)  # type: ignore[arg-type]
        case Assigned(), _:
            return _equal(expected.answer, given, tolerance)
        case _, Assigned():
            return _equal(expected, given.answer, tolerance)
        case Measured(), Measured():
            same_unit = _squeezed(expected.unit) == _squeezed(given.unit)
            return same_unit and _same_value(expected.number, given.number, tolerance)
        case Measured(), _:
            return _equal(expected.number, given, tolerance)
        case _, Measured():
            return _equal(expected, given.number, tolerance)
        case Several(), Several():
            return _same_items(expected, given, tolerance)
        case Relation(), Relation():
            return _same_relation(expected, given)
        case Expression(), Expression():
            return _same_value(expected, given, tolerance)
        case Words(), Words():
            return _squeezed(expected.text) == _squeezed(given.text)
    return False


def _is_number(answer: Answer) -> bool:
    return isinstance(answer, Expression) and answer.evaluated


def _same_items(expected: Several, given: Several, tolerance: float) -> bool:
    sides = [expected, given]
    if len(expected.items) != len(given.items):
        return False
    if expected.ordered and given.ordered:
        # with two items, brackets say which ends of an interval belong to it
        if len(expected.items) == 2 and expected.brackets != given.brackets:
            return False
        return all(_equal(a, b, tolerance) for a, b in zip(expected.items, given.items, strict=True))
    if "∪" in (expected.brackets, given.brackets) and expected.brackets != given.brackets:
        return False
    if expected.ordered or given.ordered:  # x = 1, y = 2 is (1, 2)
        items = [_values_by_name(side) for side in sides]
        if all(_equal(a, b, tolerance) for a, b in zip(*items, strict=True)):
            return True
        if expected.ordered or any(isinstance(item, Assigned) for item in expected.items):
            return False
    left = list(given.items)
    for item in expected.items:
        found = next((other for other in left if _equal(item, other, tolerance)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _values_by_name(several: Several) -> list[Answer]:
    """The values of equations in the order of their names; other items as they are."""
    named = [item for item in several.items if isinstance(item, Assigned)]
    if len(named) < len(several.items):
        return list(several.items)
    return [item.answer for item in sorted(named, key=lambda item: item.name)]


def _as_relation(assigned: Assigned) -> Relation | None:
    """The equation as a difference; its right side must be an expression."""
    if not isinstance(assigned.answer, Expression) or len(assigned.name) != 1:
        return None
    name, right = assigned.name, assigned.answer
    names = right.names | {name}
    trees = ((_minus, name, right.tree), (_minus, right.tree, name))
    one, other = (Expression(tree, names, right.rounded, False) for tree in trees)
    return Relation("=", one, other)


def _minus(a: Number, b: Number) -> Number:
    return a - b


def _same_relation(expected: Relation, given: Relation) -> bool:
    """Whether one is the other times a number, which is positive for inequalities or turns their sign."""
    if expected.sign == given.sign and _proportional(expected.difference, given.difference, expected.sign not in "=≠"):
        return True
    turned = RELATIONS[given.sign] == expected.sign
    return turned and _proportional(expected.difference, given.swapped, expected.sign not in "=≠")


def _proportional(a: Expression, b: Expression, positive: bool) -> bool:
    pairs = _values_at_points(a, b)
    ratio: Number
    first = next(((x, y) for x, y in pairs if x != 0 and y != 0), None)
    if first is None:
        return False
    try:
        ratio = first[1] / first[0]
        if positive and not (isinstance(ratio, Fraction | float) and ratio > 0):
            return False
        return all(_near(x * ratio, y, NOISE) for x, y in pairs)
    except OverflowError:  # a fraction that no floating-point number can hold, times one
        return False


def _same_value(expected: Expression, given: Expression, tolerance: float) -> bool:
    if expected.evaluated and given.names:
        return False
    if expected.names or given.names:
        pairs = _values_at_points(expected, given)
        return bool(pairs) and all(_near(x, y, NOISE) for x, y in pairs)
    try:
        one, other = expected.value(), given.value()
    except NotAnExpression:
        return False
    if expected.evaluated and not given.evaluated and not (expected.rounded and not isinstance(other, Fraction)):
        return False
    if _near_number(one, other, expected.rounded or given.rounded, tolerance):
        return True
    if expected.percent and not given.percent:  # what percentage is it? 50
        return _near_number(one * 100, other, True, tolerance)
    if given.percent and not expected.percent and not (isinstance(one, Fraction | float) and -1 < one < 1):
        return _near_number(one, other * 100, True, tolerance)
    return False


def _near_number(expected: Number, given: Number, rounded: bool, tolerance: float) -> bool:
    if isinstance(expected, Fraction) and isinstance(given, Fraction) and not rounded:
        return expected == given
    whole = isinstance(expected, Fraction) and expected.denominator == 1
    return _near(expected, given, NOISE if whole else max(tolerance, NOISE))


def _near(expected: Number, given: Number, tolerance: float) -> bool:
    if isinstance(expected, Fraction) and isinstance(given, Fraction):
        return abs(expected - given) <= Fraction(tolerance) * abs(expected)
    try:
        return bool(abs(complex(expected) - complex(given)) <= tolerance * max(abs(complex(expected)), NOISE))
    except OverflowError:
        return False


def _values_at_points(a: Expression, b: Expression) -> list[tuple[Number, Number]]:
    """Values of both at points where both have one; none where only one of them has a value at some point."""
    pairs = []
    for point in range(POINTS):
        values = {name: _coordinate(name, point) for name in a.names | b.names}
        found: list[Number | None] = []
        for expression in (a, b):
            try:
                found.append(expression.value(values))
            except NotAnExpression:
                found.append(None)
        if (found[0] is None) != (found[1] is None):
            return []
        if found[0] is not None and found[1] is not None:
            pairs.append((found[0], found[1]))
    return pairs if len(pairs) > POINTS // 2 else []


def _coordinate(name: str, point: int) -> Fraction:
    """A fixed rational number, positive and negative, that no expression is made for."""
    number = zlib.crc32(f"{name}/{point}".encode())
    return Fraction(number % 1999 + 101, 700 + number % 37) * (-1 if point % 2 else 1)
