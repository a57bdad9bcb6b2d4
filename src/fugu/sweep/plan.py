"""The plan of a sweep: what is trained, what is varied, and how the search goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, from_tree, merge, to_tree
from fugu.core.errors import UsageError
from fugu.sweep.sampler import SamplerName
from fugu.sweep.space import Space, nested, restore_space
from fugu.training.config import resolve_config


@dataclass(frozen=True)
class SearchConfig:
    """How to search."""

    trials: int = 50
    """Trainings of the whole sweep."""
    sampler: SamplerName = "cost"
    """Who chooses: cost (aware of it), tpe, gp or random."""
    metric: str = "episode_return"
    """What counts as the score, as metrics.jsonl calls it."""
    goal: Literal["maximise", "minimise"] = "maximise"
    """What to do with the score."""
    cost: Literal["seconds", "steps"] = "seconds"
    """What counts as the cost, which is always minimised."""
    max_cost: float | None = None
    """A trial that costs more is ended, and counts as pruned."""
    prune: Literal["median", "none"] = "median"
    """End trials whose score is below the median of others at the same step, or none."""
    first: bool = True
    """Try the settings as they are first."""
    retries: int = 2
    """How often a trial is begun again whose sweep was killed."""
    stale_seconds: float = 120.0
    """After which time a sweep of another machine that gives no sign counts as killed."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UsageError(f"trials: given {self.trials}; allowed: 1 or more.")
        if self.max_cost is not None and self.max_cost <= 0:
            raise UsageError(f"max-cost: given {self.max_cost}; allowed: above 0.")
        if self.stale_seconds < 1:
            raise UsageError(f"stale-seconds: given {self.stale_seconds}; allowed: 1 or more.")
        if self.retries < 0:
            raise UsageError(f"retries: given {self.retries}; allowed: 0 or more.")

    @property
    def maximise(self) -> bool:
        """Whether more is better."""
        return self.goal == "maximise"


@dataclass(frozen=True)
class Plan:
    """One sweep.

    Attributes:
        name: Of the sweep, and of its study.
        env: What to train on.
        given: Settings that files and flags gave.
        preset: A named set of settings below them.
        ranges: Of settings that are varied, as TOML has them.
        search: How to search.
        wandb: Whether trials are runs of Weights & Biases, in a group of the sweep's name.
    """

    name: str
    env: str
    given: Tree = field(default_factory=dict)
    preset: str | None = None
    ranges: Tree = field(default_factory=dict)
    search: SearchConfig = field(default_factory=SearchConfig)
    wandb: bool = False

    @cached_property
    def cfg(self) -> Config:
        """The settings as they are, before anything is varied."""
        return resolve_config(self.env, preset=self.preset, overrides=self.given)

    @cached_property
    def space(self) -> Space:
        """What is varied."""
        return restore_space(self.cfg, self.ranges)

    def trial_config(self, settings: Mapping[str, Any], run: Mapping[str, Any]) -> Config:
        """The settings of one trial, whose values stand at their paths."""
        return read_config(merge(to_tree(self.cfg), nested(settings), {"run": run}))

    def to_json(self) -> str:
        """A text that `from_json` reads."""
        found = {name: getattr(self, name) for name in ("name", "env", "given", "preset")}
        found |= {"ranges": self.ranges, "search": to_tree(self.search), "wandb": self.wandb}
        return json.dumps(found, default=str)

    @staticmethod
    def from_json(text: str) -> Plan:
        """What `to_json` gave."""
        told = json.loads(text)
        return Plan(**{**told, "search": from_tree(SearchConfig, told["search"])})
