"""Mathematical expressions from untrusted text, by a parser of its own.

Nothing is handed to `eval`: the text becomes a tree of known operations. Length and depth are limited. Plain
notation (`2*x^2`, `3x`, `5!`, `50%`) and the LaTeX of answers (`\\frac{1}{2}`, `\\sqrt[3]{x}`, `2\\pi`) are understood.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coterie.worlds.tasks.mathematics.arithmetic import (
    BETWEEN,
    CONSTANTS,
    FUNCTIONS,
    ROOTS,
    NotAnExpression,
    NoValue,
    Number,
    binomial,
    evaluate,
    factorial,
    logarithm,
    power,
    root,
)

MAX_LENGTH = 600  # characters
MAX_TOKENS = 200
MAX_DEPTH = 40  # of nesting
MAX_WORD = 3  # letters of a product of variables, such as xyz; longer words are words

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>\\?[A-Za-z]+(?:_(?:\w|\{\w+\}))?)"
    r"|(?P<sign>\*\*|//|[-+*/^%!(){}\[\]|,_]))"
)


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
        self.rounded = any(kind == "number" and not token.isdecimal() for kind, token in self.tokens)

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
        """The argument of a function without parentheses: 2x in sin 2x, 2 in sqrt 2x."""
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
    if text.isdecimal():  # isdigit is true of ² as well
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
        try:
            return f"{float(value):.12g}"
        except OverflowError:  # a fraction may be larger than every floating-point number
            raise NoValue("no value: the number is too large") from None
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
