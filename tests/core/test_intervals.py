"""Intervals of numbers: what is inside, in which words, and what classes inherit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fugu.core.config import from_tree
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    CheckedConfig,
    Fraction,
    Interval,
    NonNegativeFloat,
    PositiveInt,
    PositiveOrInfinite,
    allowed_numbers,
    intervals_of,
)


@dataclass(frozen=True)
class Base(CheckedConfig):
    section: ClassVar[str] = "train"
    epochs: PositiveInt = 4
    lambda_: Fraction = 0.5
    limits: NonNegativeFloat | tuple[NonNegativeFloat, ...] = 1.0
    norm: PositiveOrInfinite | None = None
    name: str = "any"


@dataclass(frozen=True)
class Derived(Base):
    epochs: int = 10  # another default; the interval stays


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        (Interval(0.0, 1.0), [0.0, 0.5, 1.0], [-1e-9, 1.1, math.inf, math.nan]),
        (Interval(0.0, 1.0, above=True, below=True), [0.5], [0.0, 1.0]),
        (Interval(1), [1, 10**30], [0, math.inf]),
        (Interval(0.0, infinite=True), [0.0, math.inf], [-1.0, -math.inf, math.nan]),
        (Interval(), [-5.0, 0.0], [math.inf, -math.inf, math.nan]),
    ],
)
def test_numbers_inside_and_outside(
    interval: Interval, inside: list[float], outside: list[float]
) -> None:
    assert all(number in interval for number in inside)
    assert not any(number in interval for number in outside)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(0.0, above=True, infinite=True), "above 0, or inf"),
        (Interval(0.0, 1.0, above=True, below=True), "above 0 to below 1"),
        (Interval(infinite=True), "a number"),
    ],
)
def test_intervals_in_words(interval: Interval, words: str) -> None:
    assert str(interval) == words


@pytest.mark.parametrize("kind", [Base, Derived])
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"epochs": 0}, "^train.epochs: given 0; allowed: 1 or more.$"),
        ({"lambda": "nan"}, "^train.lambda: given nan; allowed: 0 to 1.$"),
        ({"limits": (1.0, -1.0)}, r"^train.limits: given \(1.0, -1.0\); allowed: 0 or more.$"),
        ({"norm": -1}, "^train.norm: given -1.0; allowed: above 0, or inf, or none.$"),
    ],
)
def test_numbers_outside_are_refused(kind: type, tree: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_tree(kind, tree)


def test_numbers_inside_are_taken() -> None:
    taken = from_tree(Derived, {"limits": "1,2", "norm": "inf", "lambda": 1})
    assert taken == Derived(lambda_=1.0, limits=(1.0, 2.0), norm=math.inf)
    assert intervals_of(Derived)["epochs"] == Interval(1)
    assert allowed_numbers(Derived, "name") == ""
