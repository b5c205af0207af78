"""Generated mathematics: arithmetic, fractions, linear equations, systems of two, and word problems from templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from coterie.worlds.tasks.mathematics.expressions import parse

Kind = Literal["arithmetic", "fraction", "equation", "system", "word"]
Operation = Literal["+", "-", "*", "/"]
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "stickers")


@dataclass(frozen=True)
class Numbers:
    """Settings of generated problems."""

    digits: int  # of the numbers in a question
    terms: int  # of an arithmetic expression, at most
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question, its answer, and an expression that has the answer as its value."""

    text: str
    answer: str
    working: str


class Draw:
    """Random numbers of the wanted size."""

    def __init__(self, random: np.random.Generator, numbers: Numbers) -> None:
        self.random, self.numbers = random, numbers
        self.largest = 10**numbers.digits - 1

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.random.integers(low, high, endpoint=True))

    def number(self, low: int = 0) -> int:
        return self.between(low, self.largest)

    def signed(self) -> int:
        """A number that is not 0."""
        return self.number(1) * (1 if self.random.random() < 0.5 else -1)

    def choice(self, options: tuple[str, ...]) -> str:
        return options[int(self.random.integers(len(options)))]


def draw_question(random: np.random.Generator, kinds: tuple[str, ...], numbers: Numbers) -> Question:
    """A question of one of the kinds."""
    draw = Draw(random, numbers)
    return KINDS[draw.choice(kinds)](draw)


def _arithmetic(draw: Draw) -> Question:
    """Up to `terms` numbers; a division comes out even."""
    operation = draw.choice(draw.numbers.operations)
    a, b = draw.number(), draw.number()
    if operation == "/":
        b = draw.number(1)
        a = b * draw.between(0, draw.largest // b)
    text = f"{a} {operation} {b}"
    others = tuple(sign for sign in draw.numbers.operations if sign != "/") or ("+",)
    for _ in range(draw.between(2, draw.numbers.terms) - 2):
        text += f" {draw.choice(others)} {draw.number()}"
    return Question(f"What is {text}?", str(parse(text).value()), text)


def _fraction(draw: Draw) -> Question:
    denominators = (draw.between(2, max(2, draw.largest)) for _ in range(2))
    first, second = (Fraction(draw.between(1, d - 1), d) for d in denominators)
    text = f"{first.numerator}/{first.denominator} {{}} {second.numerator}/{second.denominator}"
    operation = draw.choice(draw.numbers.operations)
    working = f"({first}) {operation} ({second})"
    sign = {"/": "divided by", "*": "times"}.get(operation, operation)
    return Question(
        f"What is {text.format(sign)}, as a fraction in lowest terms?", str(parse(working).value()), working
    )


def _linear(coefficients: tuple[int, ...], names: tuple[str, ...]) -> str:
    """A sum such as 3x - y + 4; terms that are 0 are left out."""
    text = ""
    for coefficient, name in zip(coefficients, names, strict=True):
        if coefficient:
            size = "" if name and abs(coefficient) == 1 else str(abs(coefficient))
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {size}{name}" if text else f"{'-' if coefficient < 0 else ''}{size}{name}"
    return text or "0"


def _equation(draw: Draw) -> Question:
    """a x + b = c x + d with a whole solution."""
    x, a, b = draw.signed(), draw.signed(), draw.signed()
    c = draw.signed() if draw.random.random() < 0.5 else 0
    if a == c:
        c = 0
    d = a * x + b - c * x
    text = f"{_linear((a, b), ('x', ''))} = {_linear((c, d), ('x', ''))}"
    return Question(f"Solve for x: {text}", f"x = {x}", f"({d} - ({b})) / ({a} - ({c}))")


def _system(draw: Draw) -> Question:
    """Two equations in x and y with a whole solution."""
    while True:
        x, y, a, b, c, d = (draw.signed() for _ in range(6))
        if a * d != b * c:
            break
    e, f = a * x + b * y, c * x + d * y
    first, second = (f"{_linear(sides, ('x', 'y'))} = {right}" for sides, right in (((a, b), e), ((c, d), f)))
    determinant = f"(({a})*({d}) - ({b})*({c}))"
    working = f"(({e})*({d}) - ({b})*({f})) / {determinant}, (({a})*({f}) - ({e})*({c})) / {determinant}"
    return Question(f"Solve for x and y: {first} and {second}", f"x = {x}, y = {y}", working)


def _word(draw: Draw) -> Question:
    """One of the templates; every number is one that can be."""
    text, working = STORIES[draw.between(0, len(STORIES) - 1)](draw)
    name, other = (str(n) for n in draw.random.choice(NAMES, 2, replace=False))
    filled = text.format(name=name, other=other, things=draw.choice(THINGS))
    return Question(filled, str(parse(working).value()), working)


def _gives_away(draw: Draw) -> tuple[str, str]:
    a = draw.number(2)
    b, c = draw.between(1, a), draw.number(1)
    text = f"{{name}} has {a} {{things}}, gives {b} of them to {{other}} and then finds {c} more."
    return f"{text} How many {{things}} does {{name}} have now?", f"{a} - {b} + {c}"


def _boxes(draw: Draw) -> tuple[str, str]:
    a, b, c = draw.number(2), draw.number(2), draw.number(1)
    text = f"There are {a} boxes with {b} {{things}} each, and {c} {{things}} that are in no box."
    return f"{text} How many {{things}} are there?", f"{a} * {b} + {c}"


def _shares(draw: Draw) -> tuple[str, str]:
    people = draw.between(2, 9)
    each = draw.between(1, max(1, draw.largest // people))
    text = f"{people} children share {people * each} {{things}} so that all get the same number."
    return f"{text} How many {{things}} does each child get?", f"{people * each} / {people}"


def _prices(draw: Draw) -> tuple[str, str]:
    a, b, c, d = draw.number(1), draw.number(1), draw.number(1), draw.number(1)
    text = f"{{name}} buys {a} tickets for {b} euros each and {c} drinks for {d} euros each."
    return f"{text} How many euros does {{name}} pay?", f"{a} * {b} + {c} * {d}"


def _change(draw: Draw) -> tuple[str, str]:
    a, b = draw.between(2, 9), draw.number(1)
    paid = a * b + draw.number()
    text = f"{{name}} buys {a} loaves of bread for {b} euros each and pays with {paid} euros."
    return f"{text} How many euros does {{name}} get back?", f"{paid} - {a} * {b}"


def _journey(draw: Draw) -> tuple[str, str]:
    a, b, c, d = draw.number(2), draw.between(2, 9), draw.number(2), draw.between(2, 9)
    text = f"A train goes {a} kilometres an hour for {b} hours and then {c} kilometres an hour for {d} hours."
    return f"{text} How many kilometres does it go?", f"{a} * {b} + {c} * {d}"


def _ages(draw: Draw) -> tuple[str, str]:
    a, b, c = draw.number(2), draw.number(1), draw.between(1, 9)
    text = f"{{name}} is {a} years old. {{other}} is {b} years older than {{name}}."
    return f"{text} How old will {{other}} be in {c} years?", f"{a} + {b} + {c}"


def _fence(draw: Draw) -> tuple[str, str]:
    a, b = draw.number(2), draw.number(2)
    text = f"A garden is {a} metres long and {b} metres wide."
    return f"{text} How many metres of fence go around it?", f"2 * ({a} + {b})"


def _left_over(draw: Draw) -> tuple[str, str]:
    a, b = draw.number(2), draw.between(2, 9)
    text = f"{{name}} puts {a} {{things}} into bags of {b} until fewer than {b} are left."
    return f"{text} How many {{things}} are left?", f"{a} - {b} * floor({a} / {b})"


def _discount(draw: Draw) -> tuple[str, str]:
    percent, price = 10 * draw.between(1, 9), 10 * draw.number(1)
    text = f"A coat costs {price} euros. Its price falls by {percent} percent."
    return f"{text} How many euros does it cost now?", f"{price} - {price} * {percent} / 100"


STORIES: tuple[Callable[[Draw], tuple[str, str]], ...] = (
    *(_gives_away, _boxes, _shares, _prices, _change, _journey, _ages, _fence, _left_over, _discount),
)
KINDS: Mapping[str, Callable[[Draw], Question]] = {
    "arithmetic": _arithmetic,
    "fraction": _fraction,
    "equation": _equation,
    "system": _system,
    "word": _word,
}
