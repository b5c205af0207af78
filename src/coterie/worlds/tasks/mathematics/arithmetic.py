"""Exact, bounded arithmetic: fractions as long as they last, then floating-point and complex numbers.

The size of numbers is limited, so that `9**9**9` is an error and not a wait.
"""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

MAX_BITS = 4000  # of a numerator or denominator
MAX_FACTORIAL = 400
Number = Fraction | float | complex


class NotAnExpression(ValueError):
    """The text has another form, or is longer or deeper than the limits allow."""


class NoValue(NotAnExpression):
    """An expression has no value, or none within the limits."""


def evaluate(tree: Any, values: Mapping[str, Number]) -> Number:
    """The value of a tree; exact as long as all values are."""
    try:
        return _evaluate(tree, values)
    except ZeroDivisionError:
        raise NoValue("no value: division by zero") from None
    except (ArithmeticError, ValueError, TypeError) as error:
        raise NoValue(f"no value: {error}") from None


def _evaluate(tree: Any, values: Mapping[str, Number]) -> Number:
    if isinstance(tree, Fraction | float | complex):
        return tree
    if isinstance(tree, str):
        return values[tree]
    function, *parts = tree
    return bounded(function(*(_evaluate(part, values) for part in parts)))


def bounded(value: Any) -> Number:
    """A number within the limits, as a fraction where it is exact."""
    if isinstance(value, int):
        value = Fraction(value)
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise NoValue("the number is too large")
        return value
    if not cmath.isfinite(value):
        raise NoValue("the number is too large")
    if isinstance(value, complex) and abs(value.imag) <= 1e-12 * abs(value.real):
        return value.real
    return value


def power(base: Number, exponent: Number) -> Number:
    """base^exponent, exact for whole exponents."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) > MAX_BITS or (bits * abs(exponent) > MAX_BITS and abs(base) != 1):
            raise NoValue("the number is too large")
        return base ** int(exponent)
    return complex(base) ** complex(exponent)


def root(value: Number, degree: Number = Fraction(2)) -> Number:
    """The real root where there is one, exact where it is rational."""
    if isinstance(value, Fraction) and isinstance(degree, Fraction) and degree.denominator == 1 and 1 <= degree <= 64:
        sign = -1 if value < 0 else 1
        if sign == 1 or degree % 2:
            whole = [_whole_root(part, int(degree)) for part in (abs(value.numerator), value.denominator)]
            if None not in whole:
                return sign * Fraction(*whole)  # type: ignore[arg-type]  # neither is None
            return sign * float(abs(value)) ** (1 / float(degree))
    return cmath.sqrt(complex(value)) if degree == 2 else complex(value) ** (1 / complex(degree))


def _whole_root(value: int, degree: int) -> int | None:
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < value else (low, middle)
    return low if low**degree == value else None


def whole_number(value: Number, most: int) -> int:
    """A whole number from 0 to `most`."""
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= most:
        raise NoValue(f"a whole number from 0 to {most} is needed")
    return int(value)


def factorial(value: Number) -> Number:
    return Fraction(math.factorial(whole_number(value, MAX_FACTORIAL)))


def binomial(n: Number, k: Number) -> Number:
    return Fraction(math.comb(whole_number(n, MAX_FACTORIAL), whole_number(k, MAX_FACTORIAL)))


def logarithm(value: Number, base: Number | None = None) -> Number:
    found = cmath.log(complex(value))
    return found if base is None else found / cmath.log(complex(base))


def _of_whole(function: Callable[..., int]) -> Callable[..., Number]:
    return lambda *values: Fraction(function(*(whole_number(abs(value), 10**300) for value in values)))


def _complex(function: Callable[[complex], complex]) -> Callable[[Number], Number]:
    return lambda value: function(complex(value))


def modulo(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a % b
    raise NoValue("% needs exact numbers")


FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {  # name: function, fewest and most arguments
    "sqrt": (root, 1, 1),
    "cbrt": (lambda value: root(value, Fraction(3)), 1, 1),
    "abs": (abs, 1, 1),
    "exp": (_complex(cmath.exp), 1, 1),
    "log": (logarithm, 1, 2),
    "ln": (logarithm, 1, 1),
    "lg": (lambda value: logarithm(value, Fraction(10)), 1, 1),
    "sin": (_complex(cmath.sin), 1, 1),
    "cos": (_complex(cmath.cos), 1, 1),
    "tan": (_complex(cmath.tan), 1, 1),
    "cot": (lambda value: 1 / cmath.tan(complex(value)), 1, 1),
    "sec": (lambda value: 1 / cmath.cos(complex(value)), 1, 1),
    "csc": (lambda value: 1 / cmath.sin(complex(value)), 1, 1),
    "arcsin": (_complex(cmath.asin), 1, 1),
    "arccos": (_complex(cmath.acos), 1, 1),
    "arctan": (_complex(cmath.atan), 1, 1),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "round": (round, 1, 1),
    "factorial": (factorial, 1, 1),
    "binom": (binomial, 2, 2),
    "comb": (binomial, 2, 2),
    "gcd": (_of_whole(math.gcd), 2, 8),
    "lcm": (_of_whole(math.lcm), 2, 4),
    "min": (min, 1, 20),
    "max": (max, 1, 20),
}
ROOTS = ("sqrt", "cbrt")
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "i": 1j}
BETWEEN: dict[str, Callable[..., Any]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": modulo,
}
