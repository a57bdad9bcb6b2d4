"""Gathering: the rows of a batch as views where they are contiguous, as one copy elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.envs.contract import Buffers
from fugu.vector.batch import GroupBatch
from fugu.vector.slab import FIELDS, POISON, Slab

if native.available:
    from fugu._native import gather

Blocks = NDArray[np.uint8]  # [environments, bytes of one]
Span = slice | NDArray[np.int64]  # environments: a slice where they are contiguous


def span_of(env_ids: NDArray[np.int64]) -> Span:
    """Environments in ascending order, as a slice if they are contiguous."""
    first, count = int(env_ids[0]), len(env_ids)
    return slice(first, first + count) if int(env_ids[-1]) - first + 1 == count else env_ids


def whole_envs(
    agent_ids: Any, agents: int, held: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Span]:
    """The environments that agent ids name, all of whose agents must be among them."""
    ids = np.asarray(agent_ids, np.int64).reshape(-1)
    env_ids: NDArray[np.int64] = ids[::agents] // agents
    whole = (env_ids[:, None] * agents + np.arange(agents)).reshape(-1)
    if not np.array_equal(whole, ids) or len(np.unique(env_ids)) != len(env_ids):
        raise UsageError(
            f"send: given agent_ids {ids.tolist()[:8]}...; allowed: all {agents} agents of each "
            "environment, side by side, as batches have them."
        )
    outside = (env_ids < 0) | (env_ids >= len(held))
    if outside.any() or not held[env_ids].all():
        wrong = env_ids[outside] if outside.any() else env_ids[~held[env_ids]]
        raise UsageError(
            f"send: given agents of environments {wrong.tolist()[:8]}, which are not in a batch "
            "that was received and not sent yet."
        )
    ascending = bool((env_ids[1:] > env_ids[:-1]).all())
    return env_ids, span_of(env_ids) if ascending else env_ids


@dataclass
class Copy:
    """Room for a batch that is not contiguous, and how many of its environments are still held."""

    groups: tuple[Buffers, ...]
    blocks: list[Blocks]
    env_ids: NDArray[np.int64]
    held: int = 0


class Gatherer:
    """Makes the rows of batches.

    Several batches may be held at once, and a batch stays as it is until its agents are sent: each
    copy has room of its own, which is used again once all its environments were sent.
    """

    def __init__(self, slab: Slab, batch_size: int, poison: bool) -> None:
        self._slab, self._batch_size, self._poison = slab, batch_size, poison
        self._sources = _blocks(slab.rows, slab.num_envs)
        self._free: list[Copy] = []
        self._copies: dict[int, Copy] = {}  # by environment
        self._views_made: dict[tuple[int, int], tuple[GroupBatch, ...]] = {}
        self._agents = [np.arange(group.num_agents) for group in slab.groups]
        self._rows = [
            np.arange(slab.num_envs * group.num_agents, dtype=np.int64) for group in slab.groups
        ]

    def rows(self, envs: Span) -> tuple[GroupBatch, ...]:
        """The rows of these environments, in order."""
        if not isinstance(envs, slice):
            return self._gather(envs)
        key = (envs.start, envs.stop)
        if key not in self._views_made:
            if len(self._views_made) > 64:
                self._views_made.clear()
            self._views_made[key] = self._views(*key)
        return self._views_made[key]

    def release(self, envs: Span) -> None:
        """These environments are sent: what shows their rows may be overwritten."""
        if not (self._poison or self._copies):
            return
        env_ids = np.arange(envs.start, envs.stop) if isinstance(envs, slice) else envs
        if self._poison:
            self._poison_rows(env_ids)
        for env in env_ids.tolist():
            copy = self._copies.pop(env, None)
            if copy is not None:
                copy.held -= 1
                if copy.held == 0:
                    self._free.append(copy)
                    if self._poison:
                        for block in copy.blocks:
                            block.fill(POISON)

    def renew(self) -> None:
        """Bring copies up to date: some of their environments, all of them held, began anew."""
        for copy in {id(copy): copy for copy in self._copies.values()}.values():
            gather(copy.env_ids, self._sources, copy.blocks)

    def _views(self, first: int, end: int) -> tuple[GroupBatch, ...]:
        groups = []
        for group, rows, ids in zip(self._slab.groups, self._slab.rows, self._rows, strict=True):
            part = slice(first * group.num_agents, end * group.num_agents)
            views = rows.of_envs(first, end, self._slab.num_envs)
            groups.append(GroupBatch(group.name, ids[part], views))
        return tuple(groups)

    def _gather(self, env_ids: NDArray[np.int64]) -> tuple[GroupBatch, ...]:
        copy = self._free.pop() if self._free else self._new_copy()
        copy.env_ids, copy.held = env_ids, len(env_ids)
        gather(env_ids, self._sources, copy.blocks)
        self._copies.update(dict.fromkeys(env_ids.tolist(), copy))
        groups = []
        for group, rows, agents in zip(self._slab.groups, copy.groups, self._agents, strict=True):
            ids = (env_ids[:, None] * group.num_agents + agents).reshape(-1)
            views = rows.of_envs(0, len(env_ids), self._batch_size)
            groups.append(GroupBatch(group.name, ids, views))
        return tuple(groups)

    def _new_copy(self) -> Copy:
        groups = []
        for group in self._slab.groups:
            specs = Buffers.specs(group).items()
            groups.append(
                Buffers(
                    **{
                        name: np.zeros((self._batch_size * shape[0], *shape[1:]), dtype)
                        for name, (shape, dtype) in specs
                    }
                )
            )
        blocks = _blocks(tuple(groups), self._batch_size)
        return Copy(tuple(groups), blocks, np.zeros(0, np.int64))

    def _poison_rows(self, env_ids: NDArray[np.int64]) -> None:
        """Spoil what the next step writes anew: rewards, and what live agents saw."""
        for group, rows, agents in zip(
            self._slab.groups, self._slab.rows, self._agents, strict=True
        ):
            ids = (env_ids[:, None] * group.num_agents + agents).reshape(-1)
            rows.rewards[ids] = np.nan
            live = ids[rows.live[ids]]
            rows.observations.view(np.uint8)[live] = POISON


def _blocks(groups: tuple[Buffers, ...], num_envs: int) -> list[Blocks]:
    """Each array as bytes, one row an environment."""
    arrays = [getattr(rows, name) for rows in groups for name in FIELDS]
    return [
        array.reshape(-1).view(np.uint8).reshape(num_envs, -1) for array in arrays if array.size
    ]
