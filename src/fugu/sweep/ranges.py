"""Ranges: the values of a setting that a sweep tries, and the parameter that Optuna samples.

Optuna samples on linear and logarithmic scales only. So a range of `train.gamma` on a logit scale
is the parameter `logit(train.gamma)` of the study, and one of powers of two is `log2(...)`.
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
Choice = bool | int | float | str
SCALES: tuple[Scale, ...] = ("log", "logit", "power_of_two")  # uniform is the default
KEYS = ("low", "high", *SCALES, "integer", "choices")


@dataclass(frozen=True)
class Range:
    """The values of one setting: numbers between two bounds, or a list of choices.

    Attributes:
        path: The setting, such as "train.learning_rate".
        low: The lowest number.
        high: The highest number.
        scale: The scale on which numbers are sampled uniformly.
        integer: Whether the numbers are integers.
        choices: The values to choose from; empty for a range of numbers.

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
        """Name of the parameter in Optuna's study."""
        names = {"logit": f"logit({self.path})", "power_of_two": f"log2({self.path})"}
        return names.get(self.scale, self.path)

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution of the parameter."""
        if self.choices:
            return CategoricalDistribution(self.choices)
        low, high = self.encode(self.bounds[0]), self.encode(self.bounds[1])
        if self._is_whole:
            return IntDistribution(low, high, log=self.scale == "log")
        return FloatDistribution(low, high, log=self.scale == "log")

    @property
    def bounds(self) -> tuple[Any, ...]:
        """The lowest and the highest value, or all choices."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self._is_whole else (self.low, self.high)

    def decode(self, parameter: Any) -> Any:
        """Return the value of the setting for a value of the parameter."""
        if self.choices:
            return parameter
        if self.scale == "power_of_two":
            return 2 ** int(parameter)
        if self.integer:
            return int(parameter)
        value = 1 / (1 + math.exp(-parameter)) if self.scale == "logit" else float(parameter)
        return min(max(value, self.low), self.high)

    def encode(self, value: Any) -> Any:
        """Return the value of the parameter for a value of the setting."""
        if self.scale == "power_of_two":
            return int(math.log2(value))
        return math.log(value / (1 - value)) if self.scale == "logit" else value

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high or (self._is_whole and value != int(value)):
            return False
        return self.scale != "power_of_two" or math.log2(value).is_integer()

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        kind = "integers" if self.integer else "numbers"
        return f"{kind} from {self.low:g} to {self.high:g} ({self.scale.replace('_', ' ')})"

    def to_tree(self) -> Tree:
        """Return the table that `read_range` reads."""
        if self.choices:
            return {"choices": list(self.choices)}
        tree: Tree = {"low": self.bounds[0], "high": self.bounds[1]}
        if self.scale != "uniform":
            tree[self.scale] = True
        return tree | ({"integer": True} if self.integer else {})

    @property
    def _is_whole(self) -> bool:
        return self.integer or self.scale == "power_of_two"


def read_range(path: str, table: Mapping[str, Any]) -> Range:
    """Return the range that a table describes; its values may be texts, as flags give them.

    Raises:
        UsageError: The table is wrong; the message names its place.
    """
    place = f"sweep.{path}"
    given = {key.replace("-", "_"): _parse(key, value) for key, value in table.items()}
    for key in given:
        if key not in KEYS:
            (nearest,) = difflib.get_close_matches(key, KEYS, 1, cutoff=0.0)
            raise UsageError(
                f"{place}: expected keys among {', '.join(KEYS)}; got {key!r}. "
                f"Did you mean {nearest!r}?"
            )
    if "choices" in given:
        return Range(path, choices=_read_choices(place, given))
    scales = [scale for scale in SCALES if _read_flag(place, given, scale)]
    if len(scales) > 1:
        raise UsageError(f"{place}: expected one scale; got {' and '.join(scales)}.")
    low, high = _read_number(place, given, "low"), _read_number(place, given, "high")
    integer = _read_flag(place, given, "integer")
    _check_bounds(place, low, high, scales[0] if scales else "uniform", integer)
    return Range(path, low, high, scales[0] if scales else "uniform", integer)


def read_tables(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    """Return the tables of all ranges of a tree, by the paths of their settings.

    >>> read_tables({"train": {"update-epochs": {"low": 1, "high": 8}}})
    {'train.update_epochs': {'low': 1, 'high': 8}}
    """
    found: dict[str, Mapping[str, Any]] = {}
    for key, value in tree.items():
        path = f"{prefix}{key.replace('-', '_')}"
        if not isinstance(value, Mapping):
            raise UsageError(
                f"sweep.{path}: expected a table with low and high, or with choices; got "
                f"{value!r}. Example: [sweep.{path}] low = 0.001, high = 0.1, log = true."
            )
        is_inner = any(isinstance(entry, Mapping) for entry in value.values())
        found |= read_tables(value, f"{path}.") if is_inner else {path: value}
    return found


def nest(flat: Mapping[str, Any]) -> Tree:
    """Return values by dotted paths as a nested tree.

    >>> nest({"train.gamma": 0.9, "seed": 1})
    {'train': {'gamma': 0.9}, 'seed': 1}
    """
    tree: Tree = {}
    for path, value in flat.items():
        *sections, last = path.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return tree


def _parse(key: str, value: Any) -> Any:
    """Return the value that a flag's text means; values of files stay as they are."""
    if not isinstance(value, str):
        return value
    if key == "choices":
        return [parse_value(part) for part in value.split(",")]
    return parse_value(value)


def _read_choices(place: str, given: Tree) -> tuple[Choice, ...]:
    others = [key for key in given if key != "choices"]
    if others:
        raise UsageError(f"{place}: expected either choices or {others[0]}; got both.")
    choices = given["choices"]
    if not isinstance(choices, list | tuple) or len(choices) < 2:
        raise UsageError(f"{place}.choices: expected two values or more; got {choices!r}.")
    if any(not isinstance(choice, Choice) for choice in choices):
        raise UsageError(
            f"{place}.choices: expected numbers, strings, true or false; got {choices!r}."
        )
    return tuple(choices)


def _read_flag(place: str, given: Tree, key: str) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"{place}.{key}: expected true or false; got {value!r}.")
    return value


def _read_number(place: str, given: Tree, key: str) -> float:
    if key not in given:
        raise UsageError(f"{place}: expected low and high, or choices; got no {key}.")
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{place}.{key}: expected a finite number; got {value!r}.")
    return float(value)


def _check_bounds(place: str, low: float, high: float, scale: Scale, integer: bool) -> None:
    got = f"got {low:g} to {high:g}."
    if low >= high:
        raise UsageError(f"{place}: expected a low below the high; {got}")
    if scale == "log" and low <= 0:
        raise UsageError(f"{place}: expected numbers above 0 on a log scale; {got}")
    if scale == "logit" and not 0 < low < high < 1:
        raise UsageError(f"{place}: expected numbers between 0 and 1 on a logit scale; {got}")
    if scale == "logit" and integer:
        raise UsageError(f"{place}: expected either logit or integer; got both.")
    is_power = all(bound >= 1 and math.log2(bound).is_integer() for bound in (low, high))
    if scale == "power_of_two" and not is_power:
        raise UsageError(f"{place}: expected powers of two, such as 16 and 256; {got}")
    if integer and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"{place}: expected integers as low and high; {got}")
