"""What each rank takes of a run's copies, segments and seeds, and of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import Tensor

from fugu.algos.algorithm import Tensors
from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.core.ranks import Ranks
from fugu.policies.policy import Policy
from fugu.store.checkpoint import Checkpoint
from fugu.training.inputs import RunInputs
from fugu.vector import make

AGENTS = 64  # as many copies as give so many
COUNTED = (("vec", "num_envs"), ("vec", "batch_size"), ("train", "rows"), ("train", "teams"))
COMMON = ("policy_", "optimiser_")  # tensors that are the same at all ranks
State = dict[str, Any]


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


def num_ranks(state: Mapping[str, Any]) -> int:
    """How many wrote a checkpoint of this state."""
    return 1 + len(state.get("ranks", ()))


def gather_checkpoint(ranks: Ranks, tensors: Tensors, state: State) -> tuple[Tensors, State]:
    """The checkpoint of all ranks, at the first one; elsewhere what that rank has."""
    own: tuple[Tensors, State] = ({}, {})
    if ranks.rank:
        mine = {name: group for name, group in tensors.items() if not name.startswith(COMMON)}
        own = _on_cpu(mine), {k: v for k, v in state.items() if k != "optimisers"}
    others = ranks.bring(own)[1:]
    if not others:
        return tensors, state
    whole = dict(tensors)
    for rank, (theirs, _) in enumerate(others, 1):
        whole |= {f"rank{rank}.{name}": group for name, group in theirs.items()}
    return whole, {**state, "ranks": [other for _, other in others]}


def hand_out_checkpoint(ranks: Ranks, checkpoint: Checkpoint | None) -> Checkpoint:
    """What each rank needs of a checkpoint, which only the first one has."""
    parts = []
    if checkpoint is not None:
        saved = num_ranks(checkpoint.state)
        if saved != ranks.size:
            raise UsageError(
                f"ranks: given {ranks.size} for a run of {saved}, whose environments and rows are "
                f"divided among as many; allowed: fugu resume RUN --nproc {saved}."
            )
        parts = [_part(checkpoint, rank) for rank in range(ranks.size)]
    return ranks.hand_out(parts)


def _on_cpu(tensors: Tensors) -> Tensors:
    """Tensors that another process can take."""
    return {
        name: {k: v.detach().cpu() if isinstance(v, Tensor) else v for k, v in group.items()}
        for name, group in tensors.items()
    }


def _part(checkpoint: Checkpoint, rank: int) -> Checkpoint:
    """A rank's own checkpoint, as one process would have written it."""
    others = checkpoint.state.get("ranks", [])
    state = {name: value for name, value in checkpoint.state.items() if name != "ranks"}
    if not rank:
        tensors = {k: v for k, v in checkpoint.tensors.items() if not k.startswith("rank")}
        return Checkpoint(tensors, state, checkpoint.libraries)
    prefix = f"rank{rank}."
    tensors = {
        name.removeprefix(prefix): group
        for name, group in checkpoint.tensors.items()
        if name.startswith((prefix, *COMMON))
    }
    return Checkpoint(tensors, {**state, **others[rank - 1]}, checkpoint.libraries)
