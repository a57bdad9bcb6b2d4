"""A family of small problems: find the expression of two numbers that gives these results.

They are made by a fixed seed, so that everybody has the same ones: no two do the same to the tests'
numbers. What is written stands behind `return`, in one line.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fugu.sandbox import Case, Limits, Task

COUNT, EASY, SEED = 400, 40, 7  # problems; those of one operation, which come first
SHOWN, TESTED = 4, 12
HEADER = "def f(a, b):\n    return "
_Numbers = tuple[int, int]
_Leaf = tuple[str, Callable[[int, int], int]]
_JOINS: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("{} + {}", lambda x, y: x + y),
    ("{} - {}", lambda x, y: x - y),
    ("{} * {}", lambda x, y: x * y),
    ("max({}, {})", max),
    ("min({}, {})", min),
    ("abs({} - {})", lambda x, y: abs(x - y)),
)


@dataclass(frozen=True)
class Expression:
    """One problem of the family."""

    name: str
    solution: str
    cases: tuple[Case, ...]
    header: str = HEADER

    @property
    def prompt(self) -> str:
        """Some of what it gives."""
        shown = [f"f({a}, {b}) == {case.expected}" for case in self.cases[:SHOWN]
                 for a, b in [case.args]]  # fmt: skip
        return "\n".join(shown) + "\n"

    def hidden(self, limits: Limits) -> Task:
        """All tests."""
        return Task(self.name, "f", self.cases, limits=limits)

    def public(self, limits: Limits) -> Task:
        """Those that the prompt tells."""
        return Task(self.name, "f", self.cases[:SHOWN], limits=limits)


def make_expressions(count: int = COUNT, seed: int = SEED) -> tuple[Expression, ...]:
    """The first problems of a seed.

    >>> first, *_ = make_expressions(3)
    >>> first.name, first.cases[0].args == (1, 1)
    ('expressions/0', False)
    """
    chance = random.Random(seed)
    pairs = [(chance.randint(-9, 9), chance.randint(-9, 9)) for _ in range(TESTED)]
    known: set[tuple[int, ...]] = set()
    found: list[Expression] = []
    while len(found) < count:
        text, function = _draw(chance, 1 if len(found) < EASY else 2)
        results = tuple(function(a, b) for a, b in pairs)
        if results in known or len(set(results)) < SHOWN:
            continue
        known.add(results)
        cases = tuple(Case(pair, result) for pair, result in zip(pairs, results, strict=True))
        found.append(Expression(f"expressions/{len(found)}", text, cases))
    return tuple(found)


def _draw(chance: random.Random, depth: int) -> _Leaf:
    """An expression of so many joins, one inside the other."""
    if depth == 0:
        return _leaf(chance)
    form, join = chance.choice(_JOINS)
    left, right = _draw(chance, depth - 1), _leaf(chance)
    if chance.random() < 0.5:
        left, right = right, left
    named = form.startswith(("max", "min", "abs"))
    texts = [text if named or len(text) == 1 else f"({text})" for text, _ in (left, right)]
    return form.format(*texts), lambda a, b: join(left[1](a, b), right[1](a, b))


def _leaf(chance: random.Random) -> _Leaf:
    digit = chance.randint(1, 9)
    return chance.choice(
        (("a", lambda a, b: a), ("b", lambda a, b: b), (str(digit), lambda a, b: digit))
    )
