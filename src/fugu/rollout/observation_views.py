"""Critic observations: rows widened by what only critics see, before actors act on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.data.segments import Segments
from fugu.memory import RecallView
from fugu.policies.central import Bytes, CriticLayout, bytes_of
from fugu.policies.policy import Policy
from fugu.policies.recalling import RecallingPolicy
from fugu.rollout.actor import Actor
from fugu.vector import Batch, GroupBatch, Vector


class CriticObservations:
    """Adds what only critics see to the observations of a batch, and to final observations.

    Observations of dead agents, and of those whose turn it is not, are zeros there.

    Args:
        vec: The environments.
        layouts: The critic observations of each group.
        actors: One for each group.
    """

    def __init__(
        self, vec: Vector, layouts: list[CriticLayout], actors: Sequence[Actor[Segments]]
    ) -> None:
        self._layouts, self._actors = layouts, actors
        counts = [vec.num_envs * group.num_agents for group in vec.groups]
        pairs = list(zip(layouts, counts, strict=True))
        self._rows = [layout.zeros(count) for layout, count in pairs]
        self._final = [layout.zeros(count) for layout, count in pairs]
        rest = layouts[0].rest
        state = vec.groups[0].state_layout
        self._given = bool(rest) and state is not None and rest[0].layout is state

    def __call__(self, batch: Batch) -> tuple[GroupBatch, ...]:
        """Return the groups of a batch with the observations of their critics."""
        groups, envs = batch.groups, len(batch.env_ids)
        seen = [_where(group.rows.live, group.rows.observations) for group in groups]
        first = groups[0].rows
        shared = [bytes_of(first.global_state)] if self._given else [_flat(s, envs) for s in seen]
        cut = np.zeros(envs, np.bool_)
        for group in groups:
            cut |= group.rows.truncations.reshape(envs, -1).any(1)
        last: list[Bytes] = []
        if cut.any():
            last = [bytes_of(first.final_state)] if self._given else self._last(groups, envs)
        found = []
        for i, (group, layout) in enumerate(zip(groups, self._layouts, strict=True)):
            agents, count = group.agent_ids, len(group.agent_ids)
            rows, final = self._rows[i][:count], self._final[i][:count]
            _fill(layout, rows, seen[i], agents, shared)
            if cut.any():
                mine = np.repeat(cut, count // envs)
                some = layout.zeros(int(mine.sum()))
                _fill(layout, some, group.rows.final[mine], agents[mine], [s[cut] for s in last])
                final[mine] = some
            found.append(replace(group, rows=replace(group.rows, observations=rows, final=final)))
        return tuple(found)

    def _last(self, groups: Sequence[GroupBatch], envs: int) -> list[Bytes]:
        """Return all agents' last observations: the current ones where an episode continues.

        An agent that was dead before may see the next episode already: it has none.
        """
        found = []
        for group, actor in zip(groups, self._actors, strict=True):
            rows = group.rows
            ended = rows.terminations | rows.truncations
            stays = rows.live & actor.store.waiting(group.agent_ids)
            now = _where(stays, rows.observations)
            found.append(_flat(np.where(ended[:, None], rows.final, now), envs))
        return found


def _where(flags: NDArray[np.bool_], rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows, zeroed where a flag is not set."""
    return rows if flags.all() else np.where(flags[:, None], rows, rows.dtype.type(0))


def _flat(rows: NDArray[Any], envs: int) -> Bytes:
    """Return the rows of all agents of an environment side by side."""
    return bytes_of(rows).reshape(envs, -1)


def _fill(
    layout: CriticLayout,
    rows: NDArray[Any],
    own: NDArray[Any],
    agents: NDArray[np.int64],
    shared: Sequence[Bytes],
) -> None:
    """Write rows: each agent's own observation, and what all agents of an environment share."""
    layout.write_own(rows, own, agents)
    for part, numbers in zip(layout.rest, shared, strict=bool(layout.rest)):
        by_env = rows.view(np.uint8).reshape(len(numbers), -1, layout.nbytes)
        by_env[:, :, part.offset : part.end] = numbers[:, None]


class Recall:
    """Widens the observations of groups whose policies recall; one query a batch and memory.

    Args:
        policies: One for each group.
        worth: The least return of an episode whose answer is remembered.
    """

    def __init__(self, policies: Sequence[Policy], worth: float) -> None:
        self._views: list[RecallView | None] = [
            RecallView(policy.recall) if isinstance(policy, RecallingPolicy) else None
            for policy in policies
        ]
        self._worth = worth

    @classmethod
    def of(cls, policies: Sequence[Policy], worth: float) -> Recall | None:
        """None if no policy recalls."""
        recalls = any(isinstance(policy, RecallingPolicy) for policy in policies)
        return cls(policies, worth) if recalls else None

    def __call__(self, batch: Batch) -> tuple[GroupBatch, ...]:
        """The groups of a batch, as their policies see them."""
        return tuple(
            group if view is None else self._widen(group, view)
            for group, view in zip(batch.groups, self._views, strict=True)
        )

    def _widen(self, group: GroupBatch, view: RecallView) -> GroupBatch:
        agents, rows = group.agent_ids, group.rows
        ends = rows.terminations | rows.truncations
        view.record(agents, rows.rewards, ends & rows.valid, rows.final, self._worth)
        final = view.prepend(agents, rows.final)
        seen = view.observe(agents, rows.observations, ends | ~rows.valid)
        return replace(group, rows=replace(rows, observations=seen, final=final))

    def state(self) -> dict[str, Any]:
        """Return the views' states by group, for a checkpoint."""
        return {
            f"recall_{i}": view.state_dict()
            for i, view in enumerate(self._views)
            if view is not None
        }

    def load(self, tensors: Mapping[str, Mapping[str, Any]]) -> None:
        """Go back to a `state()`."""
        for i, view in enumerate(self._views):
            if view is not None:
                view.load_state_dict({k: np.asarray(v) for k, v in tensors[f"recall_{i}"].items()})
