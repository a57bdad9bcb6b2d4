"""Sights: rows that hold what an agent sees, who it is, and what only its critic sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from fugu.envs.contract import AgentGroup
from fugu.policies.unpack import torch_dtype
from fugu.spaces import Layout

Bytes = NDArray[np.uint8]
NUMBER = np.dtype(np.float32)


@dataclass(frozen=True)
class Part:
    """Some rows of a layout side by side, from `offset` bytes on."""

    layout: Layout
    count: int
    offset: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.count * self.layout.nbytes


@dataclass(frozen=True)
class Sight:
    """How a group's rows are made: first what actors read, then what is for critics alone.

    Rows are float32 if all that they hold is, else bytes whose parts begin at multiples of eight.

    Attributes:
        own: What the agent sees.
        name: Who it is among its group, one-hot; None if nobody asks.
        rest: What only its critic sees: the environment's state, or what all agents see.
        dtype: Of a row.
    """

    own: Part
    name: Part | None
    rest: tuple[Part, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(
        cls, group: AgentGroup, *, named: bool, rest: tuple[tuple[Layout, int], ...] = ()
    ) -> Sight:
        """The sight of a group's agents.

        Args:
            group: Whose.
            named: Whether rows tell who the agent is.
            rest: Layouts of what only the critic sees, and how many rows of each.

        >>> square, flag = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
        >>> group = AgentGroup("agent", ("a", "b"), Layout.of(square), Layout.of(flag))
        >>> sight = Sight.of(group, named=True, rest=((group.observation_layout, 2),))
        >>> sight.size, sight.actor_size, sight.dtype
        (14, 6, dtype('float32'))
        """
        wanted = [(group.observation_layout, 1)]
        if named:
            wanted.append((Layout.of(spaces.Box(0, 1, (group.num_agents,))), 1))
        wanted += rest
        floats = all(layout.dtype == NUMBER for layout, _ in wanted)
        parts: list[Part] = []
        end = 0
        for layout, count in wanted:
            parts.append(Part(layout, count, end))
            end = parts[-1].end if floats else _aligned(parts[-1].end)
        dtype = NUMBER if floats else np.dtype(np.uint8)
        return cls(parts[0], parts[1] if named else None, tuple(parts[1 + named :]), dtype)

    @property
    def nbytes(self) -> int:
        """Of a whole row."""
        last = self.rest[-1] if self.rest else self.name or self.own
        return self._end(last)

    @property
    def size(self) -> int:
        """Numbers of a whole row."""
        return self.nbytes // self.dtype.itemsize

    @property
    def actor_size(self) -> int:
        """Numbers of the part that actors read, which a row may end with."""
        return self._end(self.name or self.own) // self.dtype.itemsize

    @cached_property
    def layout(self) -> Layout:
        """Of whole rows, for those who only store them."""
        return self._plain_layout(self.size)

    @cached_property
    def actor_layout(self) -> Layout:
        """Of what actors read."""
        return self._plain_layout(self.actor_size)

    def rows(self, count: int, *, whole: bool = True) -> NDArray[Any]:
        """So many zeroed rows; without what is for critics, if not `whole`."""
        return np.zeros((count, self.size if whole else self.actor_size), self.dtype)

    def write_own(
        self, rows: NDArray[Any], observations: NDArray[Any], agents: NDArray[np.int64]
    ) -> None:
        """Write what agents see and who they are; agents are counted through all environments."""
        out = rows.view(np.uint8)
        out[:, self.own.offset : self.own.end] = bytes_of(observations)
        if self.name is not None:
            count = self.name.layout.size
            ones = np.eye(count, dtype=NUMBER)[agents % count]
            out[:, self.name.offset : self.name.end] = bytes_of(ones)

    def read(self, rows: Tensor, part: Part) -> Tensor:
        """A part of rows `[batch, size]` in its layout's dtype, `[batch * count, size of it]`."""
        item = self.dtype.itemsize
        found = rows[:, part.offset // item : part.end // item]
        if self.dtype != part.layout.dtype:
            found = found.view(torch_dtype(part.layout.dtype))
        return found.reshape(len(rows) * part.count, part.layout.size)

    def _end(self, part: Part) -> int:
        return part.end if self.dtype == NUMBER else _aligned(part.end)

    def _plain_layout(self, size: int) -> Layout:
        if self.dtype == NUMBER:
            return Layout.of(spaces.Box(-np.inf, np.inf, (size,)))
        return Layout.of(spaces.Box(0, 255, (size,), np.uint8))


def bytes_of(rows: NDArray[Any]) -> Bytes:
    """Rows as their bytes, `[rows, bytes]`."""
    found: Bytes = np.ascontiguousarray(rows).view(np.uint8)
    return found


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
