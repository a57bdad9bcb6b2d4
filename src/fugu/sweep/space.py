"""The space of a sweep: its ranges together, checked against the settings that they vary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution

from fugu.algos.registry import find_algorithm
from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, merge, to_tree
from fugu.core.errors import UsageError
from fugu.sweep.ranges import Range, range_tables, read_range, read_ranges
from fugu.training.config import env_ranges


class Space:
    """Ranges of settings, and the way between Optuna's parameters and settings.

    >>> from fugu.training.config import resolve_config
    >>> space = make_space(resolve_config("bandit"), {}, only=("train.learning_rate",))
    >>> list(space.distributions), space.settings({"train.learning_rate": 0.01})
    (['train.learning_rate'], {'train.learning_rate': 0.01})
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna draws from, by its own names."""
        return {each.parameter: each.distribution for each in self.ranges}

    def settings(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Values of settings, by their paths, for what Optuna drew."""
        return {each.path: each.decode(parameters[each.parameter]) for each in self.ranges}

    def parameters(self, cfg: Config) -> dict[str, Any] | None:
        """What Optuna would have drawn for settings as they are; None if one lies outside."""
        found, tree = {}, to_tree(cfg)
        for each in self.ranges:
            value = _lookup(tree, each.path)
            if value not in each:
                return None
            found[each.parameter] = each.encode(value)
        return found

    def to_tree(self) -> Tree:
        """As TOML has it, and `make_space` reads it."""
        return nested({each.path: each.to_tree() for each in self.ranges})


def make_space(cfg: Config, given: Mapping[str, Any], only: Sequence[str] = ()) -> Space:
    """The space around settings: ranges of our own < the environment's file < those given.

    A range that is whole replaces those below it; one that has only some keys changes these.

    Args:
        cfg: Settings as they are.
        given: Ranges of files and flags.
        only: Paths of the settings to vary; all that have a range if empty.
    """
    layers = (_usual(cfg), _known(env_ranges(cfg.env), cfg), given)
    tables: dict[str, Mapping[str, Any]] = {}
    for layer in layers:
        for path, table in range_tables(_spelled(layer, cfg)).items():
            whole = "choices" in table or {"low", "high"} <= table.keys()
            tables[path] = table if whole else {**tables.get(path, {}), **table}
    ranges = [read_range(path, table) for path, table in tables.items()]
    return _checked(_chosen(ranges, only), cfg)


def restore_space(cfg: Config, tree: Mapping[str, Any]) -> Space:
    """The space that `Space.to_tree` told of."""
    return _checked(read_ranges(_spelled(tree, cfg)), cfg)


def nested(flat: Mapping[str, Any]) -> Tree:
    """A tree of paths and values.

    >>> nested({"train.gamma": 0.9, "seed": 1})
    {'train': {'gamma': 0.9}, 'seed': 1}
    """
    tree: Tree = {}
    for path, value in flat.items():
        *folders, last = path.split(".")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = value
    return tree


def _usual(cfg: Config) -> Tree:
    """Ranges for any environment, of settings that the algorithm has."""
    steps, rate = cfg.train.total_steps, cfg.train.learning_rate
    logit = {"low": 0.8, "high": 0.9999, "logit": True}
    ranges: Tree = {
        "total_steps": {"low": max(1, steps // 4), "high": steps, "log": True, "integer": True},
        "learning_rate": {"low": rate / 10, "high": rate * 10, "log": True},
        "gamma": logit,
        "lambda_": {**logit, "high": 0.999},
        "entropy_coefficient": {"low": 1e-4, "high": 0.1, "log": True},
    }
    if steps < 4:
        del ranges["total_steps"]
    return {"train": {name: each for name, each in ranges.items() if hasattr(cfg.train, name)}}


def _known(tree: Mapping[str, Any], cfg: Config) -> Tree:
    """Ranges of an environment's file, without those for settings of another algorithm."""
    known = to_tree(cfg)
    found: Tree = {}
    for section, table in _spelled(tree, cfg).items():
        if section in find_algorithm(cfg.algo).ignored_hints:
            continue
        if section in ("train", "vec", "policy", "run"):
            table = {name: each for name, each in table.items() if name in known[section]}
        found[section] = table
    return found


def _spelled(tree: Mapping[str, Any], cfg: Config) -> Tree:
    """Names as the settings have them: `lambda` is `lambda_`, `learning-rate` `learning_rate`."""
    known = to_tree(cfg)
    found: Tree = {}
    for section, table in tree.items():
        section = section.replace("-", "_")
        names = {name.rstrip("_"): name for name in known.get(section) or {}}
        if isinstance(table, Mapping) and names:
            table = {
                names.get(key.replace("-", "_").rstrip("_"), key): entry
                for key, entry in table.items()
            }
        found[section] = table
    return found


def _chosen(ranges: Sequence[Range], only: Sequence[str]) -> list[Range]:
    if not only:
        return list(ranges)
    known = {each.path.rstrip("_"): each for each in ranges}
    wanted = [path.replace("-", "_").rstrip("_") for path in only]
    for path in wanted:
        if path not in known:
            raise UsageError(
                f"only: given {path!r}, which has no range; allowed: {', '.join(sorted(known))}. "
                f"Or give it one: --sweep.{path}.low and --sweep.{path}.high."
            )
    return [known[path] for path in wanted]


def _checked(ranges: Sequence[Range], cfg: Config) -> Space:
    """The space, once the ends of every range, and something between, are taken as settings."""
    base = to_tree(cfg)
    for each in ranges:
        between = each.low + (each.high - each.low) / math.pi
        for value in (*each.ends, *([between] if isinstance(each.ends[0], float) else [])):
            try:
                read_config(merge(base, nested({each.path: value})))
            except UsageError as error:
                whole = "a whole number" in str(error)
                hint = f" Say integer = true in [sweep.{each.path}]." if whole else ""
                raise UsageError(f"sweep.{each.path}: {error}{hint}") from None
    return Space(ranges)


def _lookup(tree: Mapping[str, Any], path: str) -> Any:
    value: Any = tree
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
