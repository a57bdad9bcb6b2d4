"""Writing actions into the slab: checked before anything is handed over."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import ActionError, PackError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.native.nodes import ArrayNode, Node, ScalarNode
from fugu.native.packing_reference import walk


class ActionWriter:
    """Writes the actions of one group, cast to the layout's numbers or refused."""

    def __init__(self, group: AgentGroup, rows: Buffers) -> None:
        self._layout, self._agents, self._rows = group.action_layout, group.num_agents, rows
        self._low, self._high = _bounds(group.action_layout.root, group.action_layout.size)
        # Bytes of a mixed layout are looked at where they are unpacked.
        self._checked = len({leaf.dtype for leaf in group.action_layout.leaves}) == 1

    def write(self, actions: Any, env_ids: NDArray[np.int64]) -> None:
        """Write them; raises an `ActionError` before anything is written."""
        count = len(env_ids) * self._agents
        try:
            flat = self._layout.fit_rows(actions, count)
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None
        first = int(env_ids[0])
        rows: Any = slice(first * self._agents, first * self._agents + count)
        if int(env_ids[-1]) - first + 1 != len(env_ids) or not (np.diff(env_ids) == 1).all():
            rows = (env_ids[:, None] * self._agents + np.arange(self._agents)).reshape(-1)
        if self._checked:
            self._check(flat, self._rows.live[rows])
        self._rows.actions[rows] = flat

    def _check(self, flat: NDArray[Any], live: NDArray[np.bool_]) -> None:
        inside = (flat >= self._low) & (flat <= self._high)  # not-a-number is outside
        if inside.all():
            return
        bad = np.argwhere(~inside & live[:, None])
        if len(bad):
            row, column = bad[0]
            raise ActionError(
                "",
                f"{flat[row, column]} at row {row}, column {column}",
                f"{self._low[column]} to {self._high[column]}",
            )


def _bounds(root: Node, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Bounds of each number of a row of a homogeneous layout, as far as it has any."""
    low, high = np.full(size, -np.inf), np.full(size, np.inf)
    for node in walk(root):
        if isinstance(node, ScalarNode):
            place = node.offset // node.dtype.itemsize
            low[place], high[place] = node.low, node.high
        elif isinstance(node, ArrayNode) and node.low is not None and node.high is not None:
            place = node.offset // node.dtype.itemsize
            low[place : place + len(node.low)] = node.low
            high[place : place + len(node.high)] = node.high
    return low, high
