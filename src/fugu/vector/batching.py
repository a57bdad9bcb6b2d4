"""Batches: the rows that are ready, as views where they are contiguous, as one copy elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.envs.contract import Buffers, Info
from fugu.vector.shared_buffers import FIELDS, POISON, SharedBuffers

if native.available:
    from fugu._native import gather

Blocks = NDArray[np.uint8]  # [environments, bytes of one]
Span = slice | NDArray[np.int64]  # environments: a slice where they are contiguous


@dataclass(frozen=True)
class GroupBatch:
    """One group's rows of a batch.

    Attributes:
        name: The name of the group.
        agent_ids: The numbers of the rows' agents; `send` takes them.
        rows: The arrays, as in `Buffers`, `[agents of the batch, ...]`.
    """

    name: str
    agent_ids: NDArray[np.int64]
    rows: Buffers


@dataclass(frozen=True)
class Batch:
    """The result of `recv`, valid until a `send` that names its agents.

    With one group of agents its arrays are attributes of the batch itself.

    Attributes:
        env_ids: The environments of the batch, in order.
        groups: The rows of each group.
        infos: The infos of environments, by environment; most have none.
    """

    env_ids: NDArray[np.int64]
    groups: tuple[GroupBatch, ...]
    infos: Mapping[int, tuple[Info, ...]] = field(default_factory=dict)

    @property
    def observations(self) -> NDArray[Any]:
        """The observation of each agent."""
        return self._only.rows.observations

    @property
    def final(self) -> NDArray[Any]:
        """The last observation of each episode that ended in this step."""
        return self._only.rows.final

    @property
    def action_masks(self) -> NDArray[np.bool_]:
        """Which choices are allowed."""
        return self._only.rows.action_masks

    @property
    def rewards(self) -> NDArray[np.float32]:
        """The reward of each agent since its last action."""
        return self._only.rows.rewards

    @property
    def costs(self) -> NDArray[np.float32]:
        """The costs of each agent since its last action, a column for each constraint."""
        return self._only.rows.costs

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Whether each agent's episode terminated in this step."""
        return self._only.rows.terminations

    @property
    def truncations(self) -> NDArray[np.bool_]:
        """Whether each agent's episode was truncated in this step."""
        return self._only.rows.truncations

    @property
    def live(self) -> NDArray[np.bool_]:
        """Whether each agent awaits an action."""
        return self._only.rows.live

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether each agent's step was not broken by a fault."""
        return self._only.rows.valid

    @property
    def global_state(self) -> NDArray[Any]:
        """The state of each environment for critics alone; of width 0 if there is none."""
        return self.groups[0].rows.global_state

    @property
    def agent_ids(self) -> NDArray[np.int64]:
        """The numbers of the rows' agents; `send` takes them."""
        return self._only.agent_ids

    @property
    def _only(self) -> GroupBatch:
        if len(self.groups) == 1:
            return self.groups[0]
        names = [group.name for group in self.groups]
        raise UsageError(
            f"given a batch of {len(names)} groups of agents, {names}; allowed: one. "
            "Take one of batch.groups."
        )


def span_of(env_ids: NDArray[np.int64]) -> Span:
    """Return environments in ascending order as a slice if they are contiguous."""
    first, count = int(env_ids[0]), len(env_ids)
    return slice(first, first + count) if int(env_ids[-1]) - first + 1 == count else env_ids


def rows_of(env_ids: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the numbers of the rows of environments that have so many rows each."""
    found: NDArray[np.int64] = (env_ids[:, None] * rows + np.arange(rows)).reshape(-1)
    return found


def whole_envs(
    agent_ids: Any, agents: int, held: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Span]:
    """Return the environments of these agents; all agents of each must be among them."""
    ids = np.asarray(agent_ids, np.int64).reshape(-1)
    env_ids: NDArray[np.int64] = ids[::agents] // agents
    whole = np.array_equal(rows_of(env_ids, agents), ids)
    if not whole or len(np.unique(env_ids)) != len(env_ids):
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
    """Memory of a batch that is not contiguous, and how many of its environments are still held."""

    groups: tuple[Buffers, ...]
    blocks: list[Blocks]
    env_ids: NDArray[np.int64]
    held: int = 0


class Batcher:
    """Makes the rows of batches.

    Several batches may be held at once, and a batch stays as it is until its agents are sent: each
    copy has memory of its own, which is used again once all its environments were sent.
    """

    def __init__(self, buffers: SharedBuffers, batch_size: int, poison: bool) -> None:
        self._buffers, self._batch_size, self._poison = buffers, batch_size, poison
        self._sources = _blocks(buffers.rows, buffers.num_envs)
        self._free: list[Copy] = []
        self._copies: dict[int, Copy] = {}  # by environment
        self._views: dict[tuple[int, int], tuple[GroupBatch, ...]] = {}  # by first and end

    def rows(self, envs: Span) -> tuple[GroupBatch, ...]:
        """Return the rows of these environments, in order."""
        if not isinstance(envs, slice):
            return self._gather(envs)
        key = (envs.start, envs.stop)
        if key not in self._views:
            if len(self._views) > 64:
                self._views.clear()
            views = [rows.of_envs(*key, self._buffers.num_envs) for rows in self._buffers.rows]
            self._views[key] = self._batches(np.arange(*key), views)
        return self._views[key]

    def release(self, envs: Span) -> None:
        """Let the rows of these environments, which are sent, be overwritten."""
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
        """Bring copies up to date: some of their environments, all of them held, were reset."""
        for copy in {id(copy): copy for copy in self._copies.values()}.values():
            gather(copy.env_ids, self._sources, copy.blocks)

    def _gather(self, env_ids: NDArray[np.int64]) -> tuple[GroupBatch, ...]:
        copy = self._free.pop() if self._free else self._new_copy()
        copy.env_ids, copy.held = env_ids, len(env_ids)
        gather(env_ids, self._sources, copy.blocks)
        self._copies.update(dict.fromkeys(env_ids.tolist(), copy))
        views = [rows.of_envs(0, len(env_ids), self._batch_size) for rows in copy.groups]
        return self._batches(env_ids, views)

    def _batches(self, env_ids: NDArray[np.int64], views: list[Buffers]) -> tuple[GroupBatch, ...]:
        return tuple(
            GroupBatch(group.name, rows_of(env_ids, group.num_agents), rows)
            for group, rows in zip(self._buffers.groups, views, strict=True)
        )

    def _new_copy(self) -> Copy:
        groups = []
        for group in self._buffers.groups:
            arrays = {
                name: np.zeros((self._batch_size * shape[0], *shape[1:]), dtype)
                for name, (shape, dtype) in Buffers.specs(group).items()
            }
            groups.append(Buffers(**arrays))
        blocks = _blocks(tuple(groups), self._batch_size)
        return Copy(tuple(groups), blocks, np.zeros(0, np.int64))

    def _poison_rows(self, env_ids: NDArray[np.int64]) -> None:
        """Spoil what the next step overwrites: rewards, and the observations of live agents."""
        for group, rows in zip(self._buffers.groups, self._buffers.rows, strict=True):
            ids = rows_of(env_ids, group.num_agents)
            rows.rewards[ids] = np.nan
            live = ids[rows.live[ids]]
            rows.observations.view(np.uint8)[live] = POISON


def _blocks(groups: tuple[Buffers, ...], num_envs: int) -> list[Blocks]:
    """Return each array as bytes, one row an environment."""
    arrays = [getattr(rows, name) for rows in groups for name in FIELDS]
    return [
        array.reshape(-1).view(np.uint8).reshape(num_envs, -1) for array in arrays if array.size
    ]
