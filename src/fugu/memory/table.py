"""The table of a memory: items in the order they came, their numbers as arrays that grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.memory.exact import Rows as RowNumbers
from fugu.memory.exact import lengths_of
from fugu.memory.items import ANYWHERE, Floats, Item, Where


class Table:
    """Items by row. One that is removed leaves its row empty; rows keep their numbers.

    Args:
        dimensions: Numbers in a vector; 0 if there are none.
    """

    def __init__(self, dimensions: int) -> None:
        self.items: list[Item | None] = []
        self.row_of: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._task_of = np.zeros(0, np.int64)
        self._reward = np.zeros(0)
        self._alive = np.zeros(0, np.bool_)
        self._placed = np.zeros(0, np.bool_)  # has a vector
        self._vectors = np.zeros((0, dimensions), np.float32)
        self._lengths = np.zeros(0)

    def __len__(self) -> int:
        return len(self.row_of)

    @property
    def size(self) -> int:
        """Rows, empty ones too."""
        return len(self.items)

    @property
    def vectors(self) -> Floats:
        """The vector of each row; zeros where there is none."""
        return self._vectors[: self.size]

    @property
    def lengths(self) -> NDArray[np.float64]:
        """The length of each row's vector."""
        return self._lengths[: self.size]

    def append(self, item: Item, vector: Floats | None) -> int:
        """Add an item whose id is not there; its row."""
        row = self.size
        if row == len(self._reward):
            self._grow(max(64, 2 * row))
        self.items.append(item)
        self.row_of[item.id] = row
        self._task_of[row] = self._tasks.setdefault(item.task, len(self._tasks))
        self._reward[row] = item.reward
        self._alive[row] = True
        if vector is not None:
            self._placed[row] = True
            self._vectors[row] = vector
            self._lengths[row] = lengths_of(vector[None])[0]
        return row

    def remove(self, id: str) -> int:  # noqa: A002
        """Forget an item; the row it had."""
        row = self.row_of.pop(id, None)
        if row is None:
            raise UsageError(f"memory: given the id {id!r}; allowed: one that is there.")
        self.items[row] = None
        self._alive[row] = False
        return row

    def vector(self, row: int) -> Floats | None:
        """A row's vector; None if it has none."""
        return self._vectors[row] if self._placed[row] else None

    def allowed(self, where: Where, placed: bool) -> RowNumbers:
        """The rows that a query may find; with `placed`, only those with vectors."""
        size = self.size
        mask = self._alive[:size].copy()
        if placed:
            mask &= self._placed[:size]
        if where != ANYWHERE:
            tasks, rewards = self._task_of[:size], self._reward[:size]
            if where.task is not None:
                mask &= tasks == self._tasks.get(where.task, -1)
            if where.not_task is not None:
                mask &= tasks != self._tasks.get(where.not_task, -1)
            if where.min_reward is not None:
                mask &= rewards >= where.min_reward
            if where.max_reward is not None:
                mask &= rewards <= where.max_reward
        return np.flatnonzero(mask).astype(np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers of rows that hold items, in order."""
        kept = np.flatnonzero(self._alive[: self.size])
        return {
            "rewards": self._reward[kept],
            "placed": self._placed[kept],
            "vectors": self._vectors[kept],
        }

    def _grow(self, size: int) -> None:
        for name in ("_task_of", "_reward", "_alive", "_placed", "_vectors", "_lengths"):
            old = getattr(self, name)
            fresh = np.zeros((size, *old.shape[1:]), old.dtype)
            fresh[: len(old)] = old
            setattr(self, name, fresh)


def plain(item: Item) -> Mapping[str, Any]:
    """What of an item is JSON; reward and vector are in arrays."""
    return {
        "id": item.id,
        "text": item.text,
        "task": item.task,
        "metadata": dict(item.metadata),
    }
