"""Shares: what each rank takes of a run's copies, rows and seeds."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.core.ranks import Ranks
from fugu.policies.policy import Policy
from fugu.training.inputs import RunInputs
from fugu.vector import make

AGENTS = 64  # as many copies as give so many
COUNTED = (("vec", "num_envs"), ("vec", "batch_size"), ("train", "rows"), ("train", "teams"))


def count_copies(cfg: Config, inputs: RunInputs) -> int:
    """Copies of all ranks: what was asked for, or as many as give 64 agents."""
    given: int = cfg.vec.num_envs
    if given:
        return given
    with make(inputs.env_of(cfg.env), 1, backend="serial", env_kwargs=cfg.env_kwargs) as one:
        copies = max(1, AGENTS // one.num_agents)
    unit: int = 1 if inputs.ranks.size == 1 else inputs.ranks.size * cfg.vec.group_size
    return -(-copies // unit) * unit


def share_of(cfg: Config, inputs: RunInputs) -> Config:
    """The settings of this rank: its share of what those of the run count."""
    size = inputs.ranks.size
    if size == 1:
        return cfg
    check_shares(cfg, size)
    whole = replace(cfg, vec=replace(cfg.vec, num_envs=count_copies(cfg, inputs)))
    shares: dict[str, dict[str, Any]] = {"vec": {}, "train": {}}
    for section, name in COUNTED:
        if given := getattr(getattr(whole, section), name, None):
            shares[section][name] = given // size
    if cfg.vec.num_workers is not None:
        shares["vec"]["num_workers"] = max(1, cfg.vec.num_workers // size)
    changed: dict[str, Any] = {
        section: replace(getattr(whole, section), **own) for section, own in shares.items()
    }
    return replace(whole, **changed)


def check_shares(cfg: Config, size: int) -> None:
    """Raise if a run cannot be divided among so many ranks."""
    if not find_algorithm(cfg.algo).supports_ranks:
        names = [name for name in algorithm_names() if find_algorithm(name).supports_ranks]
        raise UsageError(
            f"nproc: given {size} with {cfg.algo}; allowed: more than 1 with {', '.join(names)}."
        )
    for section, name in COUNTED:
        given = getattr(getattr(cfg, section), name, None) or 0
        unit = size * (cfg.vec.group_size if name == "num_envs" else 1)
        if given % unit:
            raise UsageError(
                f"{section}.{name}: given {given} with {size} ranks; allowed: multiples of {unit}, "
                "so that each rank has as much."
            )
    alone = {
        "league.enabled": cfg.league.enabled,
        "policy.recall": cfg.policy.recall,
        "train.best_episodes": getattr(cfg.train, "best_episodes", 0),
        "run.record_data": cfg.run.record_data,
        "run.trajectories": cfg.run.trajectories,
    }
    for place, given in alone.items():
        if given:
            raise UsageError(f"{place}: given {given} with {size} ranks; allowed: with one.")


def broadcast(policy: Policy, ranks: Ranks) -> None:
    """Give all ranks the first one's weights, and normalize observations by what all see."""
    ranks.copy_first(tensor.data for tensor in chain(policy.parameters(), policy.buffers()))
    for scale in policy.scales:
        scale.ranks = ranks
