"""Recall: what policies with a memory are shown of each batch, and what they remember of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fugu.memory import RecallView
from fugu.policies.policy import Policy
from fugu.policies.recalling import RecallingPolicy
from fugu.vector import Batch, GroupBatch


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
