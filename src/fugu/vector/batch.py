"""Batches: views of the rows that are ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.contract import Buffers, Info


@dataclass(frozen=True)
class GroupBatch:
    """One group's rows of a batch.

    Attributes:
        name: The group's.
        agent_ids: The rows' places in the slab; `send` takes them.
        rows: The arrays, as in `Buffers`, `[agents of the batch, ...]`.
    """

    name: str
    agent_ids: NDArray[np.int64]
    rows: Buffers


@dataclass(frozen=True)
class Batch:
    """What `recv` gives: valid until a `send` that names its agents.

    With one group of agents its arrays are attributes of the batch itself.

    Attributes:
        env_ids: The environments it is of, in order.
        groups: The rows of each group.
        infos: What the environments have to say, by environment; most say nothing.
    """

    env_ids: NDArray[np.int64]
    groups: tuple[GroupBatch, ...]
    infos: Mapping[int, tuple[Info, ...]] = field(default_factory=dict)

    @property
    def observations(self) -> NDArray[Any]:
        """What each agent sees."""
        return self._only.rows.observations

    @property
    def final(self) -> NDArray[Any]:
        """The last observation of each episode that ended now."""
        return self._only.rows.final

    @property
    def action_masks(self) -> NDArray[np.bool_]:
        """Which choices are allowed."""
        return self._only.rows.action_masks

    @property
    def rewards(self) -> NDArray[np.float32]:
        """What reached each agent since it acted last."""
        return self._only.rows.rewards

    @property
    def costs(self) -> NDArray[np.float32]:
        """What each agent paid since it acted last, a column for each constraint."""
        return self._only.rows.costs

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Whose episode ended by itself now."""
        return self._only.rows.terminations

    @property
    def truncations(self) -> NDArray[np.bool_]:
        """Whose episode was cut off now."""
        return self._only.rows.truncations

    @property
    def live(self) -> NDArray[np.bool_]:
        """Who awaits an action."""
        return self._only.rows.live

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whose step was not broken by a fault."""
        return self._only.rows.valid

    @property
    def global_state(self) -> NDArray[Any]:
        """Of each environment, what only critics may see; of no width if there is none."""
        return self.groups[0].rows.global_state

    @property
    def agent_ids(self) -> NDArray[np.int64]:
        """The rows' places; `send` takes them."""
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
