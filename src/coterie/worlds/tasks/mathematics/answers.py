"""Compare mathematical answers: numbers, expressions, equations, lists, sets, tuples and intervals.

Expressions are equal where their values are, exactly for whole numbers and fractions, within a tolerance for rounded
ones, and at several points where they have variables. All other texts are compared as texts.

Where the expected answer is a number, a given one must be a number too and not a calculation, or the question itself
would answer it: `12/4` is not the answer 3, and `3x = 9` is not `x = 3`.
"""

from __future__ import annotations

import re
import zlib
from fractions import Fraction

from coterie.worlds.tasks.mathematics.arithmetic import NotAnExpression, Number
from coterie.worlds.tasks.mathematics.expressions import Expression
from coterie.worlds.tasks.mathematics.forms import (
    MAX_LENGTH,
    RELATIONS,
    Answer,
    Assigned,
    Measured,
    Relation,
    Several,
    Words,
    plain,
    read,
)

TOLERANCE = 1e-6  # relative
NOISE = 1e-9  # of floating-point numbers
POINTS = 6  # at which expressions with variables are compared


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
            return all(isinstance(s, Relation) for s in sides) and _same_relation(*sides)  # type: ignore[arg-type]  # checked on the left
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
        case Several(items=(item,)), _ if not isinstance(given, Several):
            return _equal(item, given, tolerance)
        case _, Several(items=(item,)) if not isinstance(expected, Several):
            return _equal(expected, item, tolerance)
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
    named = [any(isinstance(item, Assigned) for item in side.items) for side in sides]
    if expected.ordered or given.ordered or named[0] != named[1]:  # x = 1, y = 2 is (1, 2)
        items = [_values_by_name(side) for side in sides]
        if all(_equal(a, b, tolerance) for a, b in zip(*items, strict=True)):
            return True
        if expected.ordered or any(named):
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
    whole = isinstance(expected, Fraction) and expected.denominator == 1
    if isinstance(expected, Fraction) and isinstance(given, Fraction) and (whole or not rounded):
        return expected == given
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
