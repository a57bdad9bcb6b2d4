"""Intervals of settings: declared in a field's type, checked in one place, shown by help and docs.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class TrainSettings(CheckedConfig):
...     section: ClassVar[str] = "train"
...     gamma: Fraction = 0.99
...     target_kl: PositiveFloat | None = None
>>> TrainSettings(target_kl=-1.0)
Traceback (most recent call last):
    ...
fugu.core.errors.UsageError: train.target_kl: given -1.0; allowed: above 0, or none.
"""

from __future__ import annotations

import functools
import inspect
import math
import typing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Interval:
    """The numbers that a setting may have; NaN is never one of them.

    >>> 0.0 in Interval(0.0, above=True), math.inf in Interval(0.0), math.nan in Interval()
    (False, False, False)
    """

    low: float = -math.inf
    """The smallest number."""
    high: float = math.inf
    """The largest number."""
    above: bool = False
    """Whether `low` itself is left out."""
    below: bool = False
    """Whether `high` itself is left out."""
    infinite: bool = False
    """Whether an infinite number is allowed, where `low` or `high` is infinite."""

    def __contains__(self, number: float) -> bool:
        inside = self.low < number if self.above else self.low <= number
        inside = inside and (number < self.high if self.below else number <= self.high)
        return inside and (self.infinite or abs(number) != math.inf)

    def __str__(self) -> str:
        """Return the interval in words, for errors, help and docs.

        >>> print(Interval(0, 1), Interval(1), Interval(0, 1, below=True), Interval(), sep="; ")
        0 to 1; 1 or more; 0 to below 1; a finite number
        """
        if math.isinf(self.low) and math.isinf(self.high):
            return "a number" if self.infinite else "a finite number"
        low = f"above {self.low:g}" if self.above else f"{self.low:g}"
        if not math.isinf(self.high):
            return f"{low} to below {self.high:g}" if self.below else f"{low} to {self.high:g}"
        words = low if self.above else f"{low} or more"
        return f"{words}, or inf" if self.infinite else words


PositiveInt = Annotated[int, Interval(1)]
NonNegativeInt = Annotated[int, Interval(0)]
FiniteFloat = Annotated[float, Interval()]
PositiveFloat = Annotated[float, Interval(0.0, above=True)]
PositiveOrInfinite = Annotated[float, Interval(0.0, above=True, infinite=True)]
NonNegativeFloat = Annotated[float, Interval(0.0)]
NonNegativeOrInfinite = Annotated[float, Interval(0.0, infinite=True)]
Fraction = Annotated[float, Interval(0.0, 1.0)]
FractionAboveZero = Annotated[float, Interval(0.0, 1.0, above=True)]
FractionBelowOne = Annotated[float, Interval(0.0, 1.0, below=True)]


class CheckedConfig:
    """Base of dataclasses of settings, which refuse numbers outside of their intervals."""

    section: ClassVar[str] = ""
    """The section that errors name before a setting."""

    def __post_init__(self) -> None:
        check_intervals(self, self.section)


def check_intervals(config: Any, section: str = "") -> None:
    """Raise `UsageError` for the first number of a dataclass that is outside of its interval.

    Args:
        config: A dataclass, some of whose fields have a type such as `PositiveInt`. Every number of
            a tuple is checked, and None is left alone.
        section: The name that stands before the field's in the error, such as "train".
    """
    kind: Any = type(config)
    for name, interval in intervals_of(kind).items():
        given = getattr(config, name)
        for number in given if isinstance(given, tuple) else (given,):
            if number is not None and number not in interval:
                path = f"{section}.{name}".lstrip(".").rstrip("_")
                allowed = allowed_numbers(kind, name)
                raise UsageError(f"{path}: given {given}; allowed: {allowed}.")


@functools.cache
def intervals_of(kind: Any) -> dict[str, Interval]:
    """Return the interval of each field that has one.

    A class that gives a field of its base another default may annotate it with the plain type: the
    interval stays the base's.
    """
    found: dict[str, Interval] = {}
    for base in reversed(kind.__mro__):
        for name, hint in inspect.get_annotations(base, eval_str=True).items():
            if interval := _interval_in(hint):
                found[name] = interval
    return found


def allowed_numbers(kind: Any, name: str) -> str:
    """Return the numbers that a field may have, in words; empty if it has no interval.

    >>> allowed_numbers(CheckedConfig, "section")
    ''
    """
    interval = intervals_of(kind).get(name)
    if interval is None:
        return ""
    optional = type(None) in typing.get_args(typing.get_type_hints(kind)[name])
    return f"{interval}, or none" if optional else str(interval)


def _interval_in(hint: Any) -> Interval | None:
    """Return the interval somewhere in a type, such as `tuple[PositiveInt, ...] | None`."""
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Interval)]
    inner = (found for part in typing.get_args(hint) if (found := _interval_in(part)))
    return marks[0] if marks else next(inner, None)
