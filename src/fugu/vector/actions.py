"""Writing actions into the slab."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import ActionError, PackError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.vector.gathering import Span


class ActionWriter:
    """Writes the actions of one group, cast to the layout's numbers or refused.

    Whether they are values of the action space is seen where they are unpacked, by the workers.
    """

    def __init__(self, group: AgentGroup, rows: Buffers) -> None:
        self._layout, self._agents, self._actions = (
            group.action_layout,
            group.num_agents,
            rows.actions,
        )

    def fit(self, actions: Any, count: int) -> NDArray[Any]:
        """The actions of `count` environments as rows of the layout, or an `ActionError`."""
        try:
            return self._layout.fit_rows(actions, count * self._agents)
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None

    def write(self, flat: NDArray[Any], envs: Span) -> None:
        """Write rows that fit."""
        agents = self._agents
        if isinstance(envs, slice):
            self._actions[envs.start * agents : envs.stop * agents] = flat
        else:
            self._actions[(envs[:, None] * agents + np.arange(agents)).reshape(-1)] = flat
