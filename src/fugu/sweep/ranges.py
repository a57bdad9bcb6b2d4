"""Ranges: which values of a setting a sweep tries, on which scale, and how Optuna sees them.

Optuna draws on plain and logarithmic scales only, so a logit range is drawn as `logit(train.gamma)`
and a range of powers of two as `log2(vec.num_envs)`; what is trained with is the setting itself.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fugu.core.config import Tree, parse_value
from fugu.core.errors import UsageError

Scale = Literal["uniform", "log", "logit", "power_of_two"]
Choice = bool | int | float | str | None
SCALES: tuple[Scale, ...] = ("log", "logit", "power_of_two")  # beside uniform, which needs no word
KEYS = ("low", "high", *SCALES, "integer", "choices")


@dataclass(frozen=True)
class Range:
    """One setting: numbers from `low` to `high` on a scale, or some choices.

    Attributes:
        path: The setting, such as "train.learning_rate".
        low: The least number.
        high: The greatest.
        scale: On which all parts are equally likely.
        integer: Whether the numbers are whole.
        choices: Values to choose from instead of numbers.

    >>> gamma = read_range("train.gamma", {"low": 0.9, "high": 0.999, "logit": True})
    >>> gamma.parameter, round(gamma.decode(gamma.encode(0.99)), 12)
    ('logit(train.gamma)', 0.99)
    """

    path: str
    low: float = 0.0
    high: float = 0.0
    scale: Scale = "uniform"
    integer: bool = False
    choices: tuple[Choice, ...] = ()

    @property
    def parameter(self) -> str:
        """What Optuna calls it."""
        names = {"logit": f"logit({self.path})", "power_of_two": f"log2({self.path})"}
        return names.get(self.scale, self.path)

    @property
    def distribution(self) -> BaseDistribution:
        """What Optuna draws from."""
        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.scale == "power_of_two":
            return IntDistribution(int(math.log2(self.low)), int(math.log2(self.high)))
        if self.scale == "logit":
            return FloatDistribution(_logit(self.low), _logit(self.high))
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.scale == "log")
        return FloatDistribution(self.low, self.high, log=self.scale == "log")

    @property
    def ends(self) -> tuple[Any, ...]:
        """The least and the greatest value, or all choices."""
        if self.choices:
            return self.choices
        whole = self.integer or self.scale == "power_of_two"
        return (int(self.low), int(self.high)) if whole else (self.low, self.high)

    def decode(self, drawn: Any) -> Any:
        """The setting's value for what Optuna drew."""
        if self.choices:
            return drawn
        if self.scale == "power_of_two":
            return 2 ** int(drawn)
        if self.integer:
            return int(drawn)
        value = 1 / (1 + math.exp(-drawn)) if self.scale == "logit" else float(drawn)
        return min(max(value, self.low), self.high)

    def encode(self, value: Any) -> Any:
        """What Optuna would have drawn for a value of the setting.

        Raises:
            UsageError: The value lies outside.
        """
        if value not in self:
            raise UsageError(f"{self.path}: given {value!r}; allowed: {self}.")
        if self.choices:
            return value
        if self.scale == "power_of_two":
            return int(math.log2(value))
        return _logit(value) if self.scale == "logit" else value

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        whole = self.integer or self.scale == "power_of_two"
        fits = not whole or float(value).is_integer()
        power = self.scale != "power_of_two" or (value > 0 and math.log2(value).is_integer())
        return self.low <= value <= self.high and fits and power

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        kind = "whole numbers" if self.integer else "numbers"
        return f"{kind} from {self.low:g} to {self.high:g} ({self.scale.replace('_', ' ')})"

    def to_tree(self) -> Tree:
        """As TOML has it."""
        if self.choices:
            return {"choices": list(self.choices)}
        tree: Tree = {"low": self.ends[0], "high": self.ends[1]}
        if self.scale != "uniform":
            tree[self.scale] = True
        return tree | ({"integer": True} if self.integer else {})


def read_range(path: str, table: Mapping[str, Any]) -> Range:
    """A range from its table; what is wrong with it is said with its place."""
    place = f"sweep.{path}"
    given = {key.replace("-", "_"): _plain(key, value) for key, value in table.items()}
    for key in given:
        if key not in KEYS:
            (nearest,) = difflib.get_close_matches(key, KEYS, 1, cutoff=0.0)
            raise UsageError(
                f"{place}.{key}: given, but a range has no such key; nearest: {nearest}; "
                f"allowed: {', '.join(KEYS)}."
            )
    if "choices" in given:
        return _read_choices(path, given)
    scales = [scale for scale in SCALES if _flag(place, given, scale)]
    if len(scales) > 1:
        raise UsageError(f"{place}: given {' and '.join(scales)}; allowed: one of them.")
    low, high = (_number(place, given, key) for key in ("low", "high"))
    scale: Scale = scales[0] if scales else "uniform"
    found = Range(path, low, high, scale, _flag(place, given, "integer"))
    _check(place, found)
    return found


def read_ranges(tree: Mapping[str, Any], place: str = "") -> list[Range]:
    """All ranges of a tree of them, as `[sweep.train.learning_rate]` tables make it.

    >>> [str(r) for r in read_ranges({"train": {"epochs": {"low": 1, "high": 8, "integer": True}}})]
    ['whole numbers from 1 to 8 (uniform)']
    """
    return [read_range(path, table) for path, table in range_tables(tree, place).items()]


def range_tables(tree: Mapping[str, Any], place: str = "") -> dict[str, Mapping[str, Any]]:
    """The tables of all ranges of a tree, by the paths of their settings."""
    found: dict[str, Mapping[str, Any]] = {}
    for key, value in tree.items():
        path = f"{place}{key.replace('-', '_')}"
        if not isinstance(value, Mapping):
            raise UsageError(
                f"sweep.{path}: given {value!r}; allowed: a table with low and high, or choices, "
                f"such as [sweep.{path}] low = 0.001, high = 0.1, log = true."
            )
        inner = any(isinstance(entry, Mapping) for entry in value.values())
        found |= range_tables(value, f"{path}.") if inner else {path: value}
    return found


def _read_choices(path: str, given: Tree) -> Range:
    others = [key for key in given if key != "choices"]
    if others:
        raise UsageError(f"sweep.{path}: given choices and {others[0]}; allowed: one of the two.")
    choices = given["choices"]
    if not isinstance(choices, list | tuple) or len(choices) < 2:
        raise UsageError(
            f"sweep.{path}.choices: given {choices!r}; allowed: a list of two values or more."
        )
    if any(not isinstance(choice, bool | int | float | str) for choice in choices):
        raise UsageError(
            f"sweep.{path}.choices: given {choices!r}; allowed: numbers, texts, true and false."
        )
    return Range(path, choices=tuple(choices))


def _plain(key: str, value: Any) -> Any:
    """What a flag's text means; a file's value stays."""
    if not isinstance(value, str):
        return value
    return (
        [parse_value(part) for part in value.split(",")] if key == "choices" else parse_value(value)
    )


def _flag(place: str, given: Tree, key: str) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"{place}.{key}: given {value!r}; allowed: true or false.")
    return value


def _number(place: str, given: Tree, key: str) -> float:
    value = given.get(key)
    if value is None:
        raise UsageError(f"{place}: given no {key}; allowed: low and high, or choices.")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{place}.{key}: given {value!r}; allowed: a number.")
    return float(value)


def _check(place: str, found: Range) -> None:
    low, high, scale = found.low, found.high, found.scale
    given = f"{place}: given {low:g} to {high:g}"
    if low >= high:
        raise UsageError(f"{given}; allowed: a low below the high.")
    if scale == "log" and low <= 0:
        raise UsageError(f"{given} on a log scale; allowed: numbers above 0.")
    if scale == "logit" and not 0 < low < high < 1:
        raise UsageError(f"{given} on a logit scale; allowed: numbers between 0 and 1.")
    if scale == "logit" and found.integer:
        raise UsageError(f"{place}: given logit and integer; allowed: one of the two.")
    powers = all(end >= 1 and math.log2(end).is_integer() for end in (low, high))
    if scale == "power_of_two" and not powers:
        raise UsageError(f"{given}; allowed: powers of two, such as 16 and 256.")
    if found.integer and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"{given} with integer; allowed: whole numbers.")


def _logit(value: float) -> float:
    return math.log(value / (1 - value))
