"""Ranges: the values of a setting that a sweep tries, and the parameter that Optuna samples.

Optuna samples on linear and logarithmic scales only. So a range of `train.gamma` on a logit scale
is the parameter `logit(train.gamma)` of the study, and one of powers of two is `log2(...)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fugu.core.config import Tree, from_tree, parse_value
from fugu.core.errors import UsageError

SCALES = ("log", "logit", "power_of_two")  # the default is uniform


@dataclass(frozen=True)
class Range:
    """The values of one setting: numbers between two bounds, or a list of choices.

    Attributes:
        path: The setting, such as "train.learning_rate".
        low: The lowest number.
        high: The highest number.
        log: Whether the log of the numbers is sampled uniformly.
        logit: Whether their logit is, so that values near 0 and near 1 get room.
        power_of_two: Whether the numbers are powers of two.
        integer: Whether the numbers are integers.
        choices: The values to choose from; empty for a range of numbers.

    >>> gamma = read_range("train.gamma", {"low": 0.9, "high": 0.999, "logit": True})
    >>> gamma.parameter, round(gamma.decode(gamma.encode(0.99)), 12)
    ('logit(train.gamma)', 0.99)
    """

    path: str = ""
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    logit: bool = False
    power_of_two: bool = False
    integer: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def parameter(self) -> str:
        """Name of the parameter in Optuna's study."""
        if self.power_of_two:
            return f"log2({self.path})"
        return f"logit({self.path})" if self.logit else self.path

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution of the parameter."""
        if self.choices:
            return CategoricalDistribution(self.choices)
        low, high = (self.encode(bound) for bound in self.bounds)
        kind = IntDistribution if self._is_whole else FloatDistribution
        return kind(low, high, log=self.log)

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
        if self._is_whole:
            return 2 ** int(parameter) if self.power_of_two else int(parameter)
        value = 1 / (1 + math.exp(-parameter)) if self.logit else float(parameter)
        return min(max(value, self.low), self.high)

    def encode(self, value: Any) -> Any:
        """Return the value of the parameter for a value of the setting."""
        if self.power_of_two:
            return int(math.log2(value))
        return math.log(value / (1 - value)) if self.logit else value

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high or (self._is_whole and value != int(value)):
            return False
        return not self.power_of_two or math.log2(value).is_integer()

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        kind = "integers" if self.integer else "numbers"
        scale = next((name for name in SCALES if getattr(self, name)), "uniform").replace("_", " ")
        return f"{kind} from {self.low:g} to {self.high:g} ({scale})"

    def to_tree(self) -> Tree:
        """Return the table that `read_range` reads."""
        if self.choices:
            return {"choices": list(self.choices)}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("path", "choices") and value is not False
        }

    @property
    def _is_whole(self) -> bool:
        return self.integer or self.power_of_two


def read_range(path: str, table: Mapping[str, Any]) -> Range:
    """Return the range that a table describes; its values may be texts, as flags give them.

    Raises:
        UsageError: The table is wrong; the message names its place.
    """
    place = f"sweep.{path}"
    choices = table.get("choices")
    if isinstance(choices, str):
        table = {**table, "choices": [parse_value(part) for part in choices.split(",")]}
    found = replace(from_tree(Range, table, f"{place}."), path=path)
    if "choices" in table:
        _check_choices(place, found.choices, [key for key in table if key != "choices"])
    else:
        _check_bounds(place, found)
    return found


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


def _check_choices(place: str, choices: tuple[Any, ...], others: list[str]) -> None:
    if others:
        raise UsageError(f"{place}: expected either choices or {others[0]}; got both.")
    if len(choices) < 2:
        raise UsageError(f"{place}.choices: expected two values or more; got {list(choices)}.")
    if any(not isinstance(choice, bool | int | float | str) for choice in choices):
        raise UsageError(
            f"{place}.choices: expected numbers, strings, true or false; got {list(choices)}."
        )


def _check_bounds(place: str, found: Range) -> None:
    low, high = found.low, found.high
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(f"{place}: expected finite numbers as low and high, or choices.")
    got = f"got {low:g} to {high:g}."
    scales = [name for name in SCALES if getattr(found, name)]
    if len(scales) > 1:
        raise UsageError(f"{place}: expected one scale; got {' and '.join(scales)}.")
    if low >= high:
        raise UsageError(f"{place}: expected a low below the high; {got}")
    if found.log and low <= 0:
        raise UsageError(f"{place}: expected numbers above 0 on a log scale; {got}")
    if found.logit and not 0 < low < high < 1:
        raise UsageError(f"{place}: expected numbers between 0 and 1 on a logit scale; {got}")
    if found.logit and found.integer:
        raise UsageError(f"{place}: expected either logit or integer; got both.")
    is_power = all(bound >= 1 and math.log2(bound).is_integer() for bound in (low, high))
    if found.power_of_two and not is_power:
        raise UsageError(f"{place}: expected powers of two, such as 16 and 256; {got}")
    if found.integer and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"{place}: expected integers as low and high; {got}")
