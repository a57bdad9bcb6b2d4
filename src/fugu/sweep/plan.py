"""The plan of a sweep: what is trained, which settings vary, and how the search works.

Optuna samples on linear and logarithmic scales only. So a range of `train.gamma` on a logit scale
is the parameter `logit(train.gamma)` of the study, and one of powers of two is `log2(...)`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fugu.algos.registry import find_algorithm
from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, from_tree, merge, parse_value, to_tree
from fugu.core.errors import UsageError
from fugu.core.intervals import CheckedConfig, Interval, NonNegativeInt, PositiveFloat, PositiveInt
from fugu.store.run import Run
from fugu.sweep.sampler import SamplerName
from fugu.training.config import env_ranges, resolve_config

SCALES = ("log", "logit", "power_of_two")  # the default is uniform


@dataclass(frozen=True)
class Range:
    """The values of one setting: numbers between two bounds, or a list of choices.

    Attributes:
        path: The setting, such as "train.learning_rate".
        log: Sample the logarithm of the numbers uniformly.
        logit: Sample their logit uniformly, so that values near 0 and near 1 get room.
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
    """Return the range that a table describes; its values may be texts, as flags give them."""
    place = f"sweep.{path}"
    choices = table.get("choices")
    if isinstance(choices, str):
        table = {**table, "choices": [parse_value(part) for part in choices.split(",")]}
    found = replace(from_tree(Range, table, f"{place}."), path=path)
    _check(place, found, table)
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


def _check(place: str, found: Range, table: Mapping[str, Any]) -> None:
    """Raise UsageError for a range that nothing can be sampled from."""
    if "choices" in table:
        choices, others = list(found.choices), [key for key in table if key != "choices"]
        if others:
            raise UsageError(f"{place}: expected either choices or {others[0]}; got both.")
        if len(choices) < 2:
            raise UsageError(f"{place}.choices: expected two values or more; got {choices}.")
        if any(not isinstance(choice, bool | int | float | str) for choice in choices):
            raise UsageError(
                f"{place}.choices: expected numbers, strings, true or false; got {choices}."
            )
        return
    low, high = found.low, found.high
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(f"{place}: expected finite numbers as low and high, or choices.")
    scales = [name for name in SCALES if getattr(found, name)]
    if len(scales) > 1:
        raise UsageError(f"{place}: expected one scale; got {' and '.join(scales)}.")
    if found.logit and found.integer:
        raise UsageError(f"{place}: expected either logit or integer; got both.")
    is_power = all(bound >= 1 and math.log2(bound).is_integer() for bound in (low, high))
    is_whole = low.is_integer() and high.is_integer()
    for wrong, expected in (
        (low >= high, "a low below the high"),
        (found.log and low <= 0, "numbers above 0 on a log scale"),
        (found.logit and not 0 < low < high < 1, "numbers between 0 and 1 on a logit scale"),
        (found.power_of_two and not is_power, "powers of two, such as 16 and 256"),
        (found.integer and not is_whole, "integers as low and high"),
    ):
        if wrong:
            raise UsageError(f"{place}: expected {expected}; got {low:g} to {high:g}.")


@dataclass(frozen=True)
class SearchConfig(CheckedConfig):
    """Settings of the search."""

    trials: PositiveInt = 50
    """Number of trials in the whole sweep."""
    sampler: SamplerName = "cost"
    """Who proposes settings: cost (cost-aware Gaussian processes), tpe, gp or random."""
    metric: str = "episode_return"
    """Metric of metrics.jsonl that is the score of a trial."""
    goal: Literal["maximize", "minimize"] = "maximize"
    """Whether to maximize or minimize the score."""
    cost: Literal["seconds", "steps"] = "seconds"
    """Cost of a trial, which is minimized: its seconds of training, or its environment steps."""
    max_cost: PositiveFloat | None = None
    """Prune trials that cost more than this; none: no limit."""
    prune: Literal["median", "none"] = "median"
    """Prune trials whose score is below the median of other trials at the same step, or none."""
    first: bool = True
    """Evaluate the settings without any change first."""
    retries: NonNegativeInt = 2
    """How often to retry a trial whose sweep process was killed."""
    stale_seconds: Annotated[float, Interval(1.0)] = 120.0
    """Seconds without a heartbeat after which a process on another machine counts as dead."""

    @property
    def maximize(self) -> bool:
        """Whether a higher score is better."""
        return self.goal == "maximize"


@dataclass(frozen=True)
class SweepPlan:
    """Everything that defines a sweep; it is stored, as JSON, with Optuna's study.

    Attributes:
        name: Name of the sweep and of its study.
        given: Settings from files and flags, the same in every trial.
        preset: A named set of settings, which `given` overrides.
        wandb: Whether trials are also runs of Weights & Biases, in a group named like the sweep.
    """

    name: str
    env: str
    given: Tree = field(default_factory=dict)
    preset: str | None = None
    ranges: tuple[Range, ...] = ()
    search: SearchConfig = field(default_factory=SearchConfig)
    wandb: bool = False

    @cached_property
    def cfg(self) -> Config:
        """The settings of the training before any of them varies."""
        return resolve_config(self.env, preset=self.preset, overrides=self.given)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna samples from, by the names of its parameters."""
        return {each.parameter: each.distribution for each in self.ranges}

    def settings(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings, by their paths, for the parameters that Optuna sampled."""
        return {each.path: each.decode(parameters[each.parameter]) for each in self.ranges}

    def default_parameters(self) -> dict[str, Any] | None:
        """Return the parameters of the unchanged settings; None if one is out of its range."""
        found, tree = {}, to_tree(self.cfg)
        for each in self.ranges:
            value = _value_at(tree, each.path)
            if value not in each:
                return None
            found[each.parameter] = each.encode(value)
        return found

    def trial_config(self, settings: Mapping[str, Any], run: Mapping[str, Any]) -> Config:
        """Return all settings of a trial from those that vary and those of its section `run`."""
        return read_config(merge(to_tree(self.cfg), nest(settings), {"run": run}))

    def to_json(self) -> str:
        """Return a text that `from_json` reads."""
        tree = {name: getattr(self, name) for name in ("name", "env", "given", "preset", "wandb")}
        tree["ranges"] = nest({each.path: each.to_tree() for each in self.ranges})
        return json.dumps({**tree, "search": to_tree(self.search)}, default=str)

    @staticmethod
    def from_json(text: str) -> SweepPlan:
        """Return the plan that `to_json` wrote."""
        tree = json.loads(text)
        search = dict(tree["search"])
        search["goal"] = search["goal"].replace("mise", "mize")  # as older versions wrote it
        ranges = tuple(read_range(*item) for item in read_tables(tree["ranges"]).items())
        return SweepPlan(**{**tree, "ranges": ranges, "search": from_tree(SearchConfig, search)})


def make_plan(
    env: str,
    *,
    name: str | None = None,
    given: Tree | None = None,
    preset: str | None = None,
    ranges: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    search: SearchConfig | None = None,
    wandb: bool = False,
) -> SweepPlan:
    """Return the plan of a sweep after checking all of it.

    Args:
        env: The environment to train on.
        name: Name of the sweep; None: made from the environment and the time.
        given: Settings that differ from those of `fugu train`.
        preset: A named set of settings, which `given` overrides.
        ranges: Ranges beside those of the environment's file, as TOML has them below `sweep`.
        only: Paths of the settings to vary; all that have a range if empty.
        search: Settings of the search.
        wandb: Whether trials are also runs of Weights & Biases.
    """
    cfg = resolve_config(env, preset=preset, overrides=given)
    chosen = choose_ranges(cfg, ranges or {}, only)
    name = name or Run.new_name(env)
    if not re.fullmatch(r"\w[\w.-]*", name) or name == "latest":
        raise UsageError(
            f"name: expected letters, digits, '_', '.' and '-', but not 'latest'; got {name!r}."
        )
    typed = _typed(given or {}, to_tree(cfg))
    return SweepPlan(name, env, typed, preset, chosen, search or SearchConfig(), wandb)


def choose_ranges(
    cfg: Config, given: Mapping[str, Any], only: Sequence[str] = ()
) -> tuple[Range, ...]:
    """Return the ranges of a sweep: defaults, overridden by the environment's file, then by given.

    A table with low and high, or with choices, replaces the range below it; any other table
    changes single keys of it.

    >>> [str(each) for each in choose_ranges(resolve_config("bandit"), {}, ["train.gamma"])]
    ['numbers from 0.8 to 0.9999 (logit)']
    """
    known = to_tree(cfg)
    hints = {
        path: table
        for path, table in _read_layer(env_ranges(cfg.env), known).items()
        if _applies(path, cfg, known)
    }
    tables = _default_tables(cfg)
    for layer in (hints, _read_layer(given, known)):
        for path, table in layer.items():
            is_complete = "choices" in table or {"low", "high"} <= table.keys()
            tables[path] = table if is_complete else {**tables.get(path, {}), **table}
    if only:
        tables = {path: tables[path] for path in _selected(only, tables)}
    ranges = tuple(read_range(path, table) for path, table in tables.items())
    for each in ranges:
        _check_settings(each, known)
    return ranges


def _default_tables(cfg: Config) -> dict[str, Mapping[str, Any]]:
    """Return the ranges of settings that matter in any environment, if the algorithm has them."""
    known, steps, rate = to_tree(cfg.train), cfg.train.total_steps, cfg.train.learning_rate
    tables: dict[str, Mapping[str, Any]] = {
        "total_steps": {"low": max(1, steps // 4), "high": steps, "log": True, "integer": True},
        "learning_rate": {"low": rate / 10, "high": rate * 10, "log": True},
        "gamma": {"low": 0.8, "high": 0.9999, "logit": True},
        "lambda_": {"low": 0.8, "high": 0.999, "logit": True},
        "entropy_coefficient": {"low": 1e-4, "high": 0.1, "log": True},
    }
    if steps < 4:
        del tables["total_steps"]
    return {f"train.{name}": each for name, each in tables.items() if name in known}


def _read_layer(tree: Mapping[str, Any], known: Tree) -> dict[str, Mapping[str, Any]]:
    return {_full_path(path, known): table for path, table in read_tables(tree).items()}


def _full_path(path: str, known: Tree) -> str:
    """Return the path as the settings spell it: `lambda` is the setting `lambda_`."""
    section, _, name = path.rstrip("_").partition(".")
    inner = known.get(section)
    return f"{section}.{name}_" if isinstance(inner, Mapping) and f"{name}_" in inner else path


def _applies(path: str, cfg: Config, known: Tree) -> bool:
    """Return whether a range of an environment's file is one of a setting of the algorithm."""
    section, _, name = path.partition(".")
    if section in find_algorithm(cfg.algo).ignored_hints:
        return False
    return section not in ("train", "vec", "policy", "run") or name.split(".")[0] in known[section]


def _selected(only: Sequence[str], tables: Mapping[str, Any]) -> list[str]:
    paths = {path.rstrip("_"): path for path in tables}
    wanted = [path.replace("-", "_").rstrip("_") for path in only]
    for path in wanted:
        if path not in paths:
            raise UsageError(
                f"only: expected settings that have a range: {', '.join(sorted(paths))}; got "
                f"{path!r}. Give it a range: --sweep.{path}.low and --sweep.{path}.high."
            )
    return [paths[path] for path in wanted]


def _check_settings(each: Range, known: Tree) -> None:
    """Raise UsageError unless the setting takes the bounds of its range and a value between."""
    values = list(each.bounds)
    if isinstance(values[0], float):
        values.append(each.low + (each.high - each.low) / math.pi)
    for value in values:
        try:
            read_config(merge(known, nest({each.path: value})))
        except UsageError as error:
            is_real = isinstance(value, float) and isinstance(_value_at(known, each.path), int)
            hint = f" Add integer = true to [sweep.{each.path}]." if is_real else ""
            raise UsageError(f"sweep.{each.path}: {error}{hint}") from None


def _value_at(tree: Mapping[str, Any], path: str) -> Any:
    value: Any = tree
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _typed(given: Mapping[str, Any], known: Mapping[str, Any]) -> Tree:
    """Return settings with the values of the resolved settings: flags are texts before."""
    found: Tree = {}
    for key, value in given.items():
        short = key.replace("-", "_").rstrip("_")
        name = short if short in known else f"{short}_"
        now = known[name]
        if isinstance(value, Mapping) and isinstance(now, Mapping):
            found[name] = _typed(value, now) if name != "env_kwargs" else dict(now)
        else:
            found[name] = "none" if now is None else str(now) if isinstance(now, Path) else now
    return found
