"""Mathematical expressions from untrusted text: a parser of its own and exact, bounded arithmetic.

Nothing is handed to `eval`: the text becomes a tree of known operations. Length, depth and the size of numbers are
limited, so that `9**9**9` is an error and not a wait. Understood are plain notation (`2*x^2`, `3x`, `sqrt(2)`, `5!`,
`50%`) and the LaTeX of answers (`\\frac{1}{2}`, `\\sqrt[3]{x}`, `2\\pi`).
"""

from __future__ import annotations

import cmath
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

MAX_LENGTH = 600  # characters
MAX_TOKENS = 200
MAX_DEPTH = 40  # of nesting
MAX_BITS = 4000  # of a numerator or denominator
MAX_FACTORIAL = 400
MAX_WORD = 3  # letters of a product of variables, such as xyz; longer words are words
Number = Fraction | float | complex

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>\\?[A-Za-z]+(?:_(?:\w|\{\w+\}))?)"
    r"|(?P<sign>\*\*|//|[-+*/^%!(){}\[\]|,_]))"
)


class NotAnExpression(ValueError):
    """The text has another form, or is longer or deeper than the limits allow."""


class NoValue(NotAnExpression):
    """An expression has no value, or none within the limits."""


@dataclass(frozen=True)
class Expression:
    """An expression that can be evaluated."""

    tree: Any  # a Fraction, the name of a variable, or (function, *trees)
    names: frozenset[str]  # of variables
    rounded: bool  # it has a decimal fraction
    percent: bool  # it ends with %

    @property
    def evaluated(self) -> bool:
        """Whether it is a number as one writes it down: a decimal, a fraction in lowest terms, a power of ten."""
        return _is_number(self.tree, self.percent)

    def value(self, values: Mapping[str, Number] | None = None) -> Number:
        """Its value; an error where it has none."""
        return evaluate(self.tree, values or {})


def _is_number(tree: Any, percent: bool) -> bool:
    if not isinstance(tree, tuple):
        return isinstance(tree, Fraction)
    function, *parts = tree
    if function is operator.neg:
        return _is_number(parts[0], percent)
    if function is operator.mul:
        return _literal(parts[0]) is not None and _is_power_of_ten(parts[1])
    if function is operator.truediv:
        over, under = map(_literal, parts)
        if over is None or not under:
            return False
        return percent or (abs(under) != 1 and abs(under) == (over / under).denominator)
    return _is_power_of_ten(tree)


def _is_power_of_ten(tree: Any) -> bool:
    return isinstance(tree, tuple) and tree[0] is power and tree[1] == 10 and _literal(tree[2]) is not None


def _literal(tree: Any) -> Fraction | None:
    """The number that a tree is, with its sign; None where it is more."""
    if isinstance(tree, tuple) and tree[0] is operator.neg and isinstance(tree[1], Fraction):
        return -tree[1]
    return tree if isinstance(tree, Fraction) else None


# Arithmetic ------------------------------------------------------------------------------------------


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
            raise NotAnExpression("the number is too large")
        return value
    if not cmath.isfinite(value):
        raise NotAnExpression("the number is too large")
    if isinstance(value, complex) and abs(value.imag) <= 1e-12 * abs(value.real):
        return value.real
    return value


def power(base: Number, exponent: Number) -> Number:
    """base^exponent, exact for whole exponents."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) > MAX_BITS or (bits * abs(exponent) > MAX_BITS and abs(base) != 1):
            raise NotAnExpression("the number is too large")
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
        raise NotAnExpression(f"a whole number from 0 to {most} is needed")
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


# Parsing ---------------------------------------------------------------------------------------------


def parse(text: str) -> Expression:
    """The expression that a text is; an error where it is none."""
    if len(text) > MAX_LENGTH:
        raise NotAnExpression(f"longer than {MAX_LENGTH} characters")
    return _Parser(text).expression()


class _Parser:
    """Recursive descent: sum, product, sign, power, postfix, atom."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        if len(self.tokens) > MAX_TOKENS:
            raise NotAnExpression(f"more than {MAX_TOKENS} signs")
        self.at, self.depth, self.in_bars = 0, 0, False
        self.names: set[str] = set()
        self.rounded = any(kind == "number" and not token.isdigit() for kind, token in self.tokens)

    def expression(self) -> Expression:
        """The whole text."""
        tree = self.sum()
        if self.at < len(self.tokens):
            raise NotAnExpression(f"unexpected {self.tokens[self.at][1]!r}")
        return Expression(tree, frozenset(self.names), self.rounded, self.tokens[-1] == ("sign", "%"))

    def next(self) -> str:
        """The next token; "" at the end."""
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, *tokens: str) -> str:
        """The next token if it is one of these; "" otherwise."""
        found = self.next()
        if found and found in tokens and self.tokens[self.at][0] == "sign":
            self.at += 1
            return found
        return ""

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise NotAnExpression(f"{token!r} expected, got {self.next()!r}")

    def sum(self) -> Any:
        tree = self.product()
        while sign := self.take("+", "-"):
            tree = (operator.add if sign == "+" else operator.sub, tree, self.product())
        return tree

    def product(self) -> Any:
        tree = self.signed()
        while True:
            if sign := self.take("*", "/", "//", "%"):
                tree = (BETWEEN[sign], tree, self.signed())
            elif self.starts_factor():
                tree = (operator.mul, tree, self.power())
            else:
                return tree

    def starts_factor(self) -> bool:
        """Whether a factor follows without a sign, as in 3x; two numbers in a row are none."""
        if self.at >= len(self.tokens):
            return False
        kind, token = self.tokens[self.at]
        if kind == "number":
            return self.tokens[self.at - 1][0] != "number"
        return kind == "name" or token in ("(", "{") or (token == "|" and not self.in_bars)

    def signed(self) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotAnExpression("nested too deeply")
        if sign := self.take("+", "-"):
            inner = self.signed()
            tree = (operator.neg, inner) if sign == "-" else inner
        else:
            tree = self.power()
        self.depth -= 1
        return tree

    def power(self) -> Any:
        tree = self.atom()
        while True:
            if self.take("!"):
                tree = (factorial, tree)
            elif self.next() == "%" and not self.operand_after():
                self.at += 1
                tree = (operator.truediv, tree, Fraction(100))
            elif self.take("^", "**"):
                return (power, tree, self.signed())
            else:
                return tree

    def operand_after(self) -> bool:
        """Whether the sign % is followed by what it could divide: then it is the rest of a division."""
        return self.at + 1 < len(self.tokens) and (
            self.tokens[self.at + 1][0] != "sign" or self.tokens[self.at + 1][1] in ("(", "{")
        )

    def atom(self) -> Any:
        if self.at >= len(self.tokens):
            raise NotAnExpression("it ends too early")
        kind, token = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return _number(token)
        if kind == "name":
            self.at += 1
            return self.named(token)
        for opening, closing in (("(", ")"), ("{", "}"), ("[", "]")):
            if self.take(opening):
                tree = self.sum()
                self.expect(closing)
                return tree
        if not self.in_bars and self.take("|"):
            self.in_bars = True
            tree = self.sum()
            self.in_bars = False
            self.expect("|")
            return (abs, tree)
        raise NotAnExpression(f"unexpected {token!r}")

    def named(self, name: str) -> Any:
        """A function, a constant, or variables."""
        word = name.lstrip("\\")
        if word == "frac":
            return (operator.truediv, self.group(), self.group())
        if word == "binom":
            return (binomial, self.group(), self.group()) if self.next() == "{" else self.call("binom")
        if word == "sqrt" and self.take("["):
            degree = self.sum()
            self.expect("]")
            return (root, self.group(), degree)
        if word.startswith("log_"):
            return (logarithm, self.signed(), _base(word.partition("_")[2].strip("{}")))
        if word.lower() in FUNCTIONS and len(word) > 1:
            return self.call(word.lower())
        if word in CONSTANTS:
            return CONSTANTS[word]
        return self.variables([word] if name[0] == "\\" or "_" in word else list(word))

    def group(self) -> Any:
        self.expect("{")
        tree = self.sum()
        self.expect("}")
        return tree

    def call(self, name: str) -> Any:
        """A function with arguments in parentheses, or before one factor, as in sin x."""
        function, fewest, most = FUNCTIONS[name]
        if self.take("^"):  # sin^2 x
            exponent = self.signed_atom()
            return (power, self.call(name), exponent)
        if not self.take("("):
            return (function, self.factor_of(name))
        parts = [self.sum()]
        while self.take(","):
            parts.append(self.sum())
        self.expect(")")
        if not fewest <= len(parts) <= most:
            raise NotAnExpression(f"{name} takes {fewest} to {most} values")
        return (function, *parts)

    def factor_of(self, name: str) -> Any:
        """What a function without parentheses is applied to: 2x in sin 2x, 2 in sqrt 2x."""
        tree = self.signed()
        while name not in ROOTS and self.starts_factor() and self.next().lstrip("\\").lower() not in FUNCTIONS:
            tree = (operator.mul, tree, self.power())
        return tree

    def signed_atom(self) -> Any:
        return (operator.neg, self.atom()) if self.take("-") else self.atom()

    def variables(self, letters: list[str]) -> Any:
        """One variable, or a product of some."""
        if len(letters) > MAX_WORD:
            raise NotAnExpression(f"unknown word {''.join(letters)!r}")
        tree: Any = None
        for letter in letters:
            part: Any = CONSTANTS.get(letter, letter)
            if isinstance(part, str):
                self.names.add(part)
            tree = part if tree is None else (operator.mul, tree, part)
        return tree


def modulo(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a % b
    raise NotAnExpression("% needs exact numbers")


BETWEEN: dict[str, Callable[..., Any]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": modulo,
}


def _tokens(text: str) -> Any:
    at = 0
    text = text.rstrip()
    if not text:
        raise NotAnExpression("nothing is there")
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise NotAnExpression(f"unexpected {text[at:].strip()[:1]!r}")
        yield found.lastgroup, found.group(found.lastgroup or 0)
        at = found.end()


def _number(token: str) -> Fraction:
    mantissa, _, exponent = token.lower().partition("e")
    if exponent and abs(int(exponent)) > 300:
        raise NotAnExpression("the number is too large")
    return Fraction(mantissa.rstrip(".") if not mantissa.startswith(".") else f"0{mantissa}") * Fraction(10) ** int(
        exponent or 0
    )


def _base(text: str) -> Any:
    """A number, or the name of a constant, as the base of a logarithm."""
    if text.isdigit():
        return Fraction(text)
    if text in CONSTANTS:
        return CONSTANTS[text]
    raise NotAnExpression(f"unknown base {text!r}")


# A calculator ----------------------------------------------------------------------------------------


def calculate(text: str) -> str:
    """The value of an expression without variables, in words; several are separated by commas."""
    return ", ".join(_calculate_one(part) for part in split(text))


def _calculate_one(text: str) -> str:
    found = parse(text)
    if found.names:
        raise NotAnExpression(f"unknown: {', '.join(sorted(found.names))}")
    value = found.value()
    if isinstance(value, complex):
        return f"{value.real:.12g}{value.imag:+.12g}i"
    if isinstance(value, float) or (found.rounded and value.denominator != 1):
        return f"{float(value):.12g}"
    return str(value)


def split(text: str) -> list[str]:
    """Parts between commas that are inside no brackets."""
    parts, depth = [""], 0
    for character in text[: MAX_LENGTH + 1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
