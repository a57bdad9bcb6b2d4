"""The plan of a sweep: what is trained, which settings vary, and how the search works."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from optuna.distributions import BaseDistribution

from fugu.algos.registry import find_algorithm
from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, from_tree, merge, to_tree
from fugu.core.errors import UsageError
from fugu.core.intervals import CheckedConfig, Interval, NonNegativeInt, PositiveFloat, PositiveInt
from fugu.store.run import Run
from fugu.sweep.ranges import Range, nest, read_range, read_tables
from fugu.sweep.sampler import SamplerName
from fugu.training.config import env_ranges, resolve_config

Seconds = Annotated[float, Interval(1.0)]


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
    stale_seconds: Seconds = 120.0
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
        env: The environment to train on.
        given: Settings from files and flags, the same in every trial.
        preset: A named set of settings, which `given` overrides.
        ranges: The settings that vary.
        search: Settings of the search.
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
        """Return the whole configuration of a trial.

        Args:
            settings: The settings that vary, by their paths.
            run: Settings of the section `run`.
        """
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

    Args:
        cfg: The settings before any of them varies.
        given: Ranges from files and flags.
        only: Paths of the settings to vary; all that have a range if empty.

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
    steps, rate = cfg.train.total_steps, cfg.train.learning_rate
    tables: dict[str, Mapping[str, Any]] = {
        "total_steps": {"low": max(1, steps // 4), "high": steps, "log": True, "integer": True},
        "learning_rate": {"low": rate / 10, "high": rate * 10, "log": True},
        "gamma": {"low": 0.8, "high": 0.9999, "logit": True},
        "lambda_": {"low": 0.8, "high": 0.999, "logit": True},
        "entropy_coefficient": {"low": 1e-4, "high": 0.1, "log": True},
    }
    if steps < 4:
        del tables["total_steps"]
    return {f"train.{name}": each for name, each in tables.items() if hasattr(cfg.train, name)}


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
