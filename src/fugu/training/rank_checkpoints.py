"""Checkpoints of several ranks: each one's rows and environments beside what all have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fugu.algos.algorithm import Tensors
from fugu.core.errors import UsageError
from fugu.core.ranks import Ranks
from fugu.store.checkpoint import Checkpoint

COMMON = ("policy_", "optimiser_")  # what all ranks have alike
State = dict[str, Any]


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
