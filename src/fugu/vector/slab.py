"""The slab: one contiguous array of each kind for all agents of all environments."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from fugu.envs.contract import AgentGroup, Buffers
from fugu.vector.arena import Arena, aligned

POISON = 0xAB
FIELDS = tuple(field.name for field in fields(Buffers))


class Slab:
    """All rows of all groups, and the exchange's memory, in one arena.

    Environment `e` owns the rows from `e * group.num_agents` on of each group, and row `e` of what
    there is once for an environment.
    """

    def __init__(self, groups: tuple[AgentGroup, ...], num_envs: int, exchange_bytes: int) -> None:
        self.groups, self.num_envs, self._exchange_bytes = groups, num_envs, exchange_bytes
        self.arena = Arena(self._layout(None))
        self._layout(self.arena)

    def _layout(self, arena: Arena | None) -> int:
        """Places every array, and makes them if there is memory; the bytes it takes."""
        if arena:
            self.exchange = arena.array(0, (self._exchange_bytes,), np.dtype(np.uint8))
        end = aligned(self._exchange_bytes)
        arrays: list[dict[str, NDArray[np.generic]]] = [{} for _ in self.groups]
        for group, name in self._order():
            shape, dtype = Buffers.specs(self.groups[group])[name]
            whole = (self.num_envs * shape[0], *shape[1:])
            if arena:
                arrays[group][name] = arena.array(end, whole, dtype)
            end = aligned(end + int(np.prod(whole)) * dtype.itemsize)
        if arena:
            rows = tuple(Buffers(**each) for each in arrays)  # type: ignore[arg-type]
            self.rows: tuple[Buffers, ...] = rows
        return end

    def _order(self) -> list[tuple[int, str]]:
        """All arrays, each by its group and its name, as they stand in memory."""
        return [(group, name) for group in range(len(self.groups)) for name in FIELDS]

    def of_env(self, env: int) -> tuple[Buffers, ...]:
        """The rows of one environment."""
        return tuple(rows.of_envs(env, env + 1, self.num_envs) for rows in self.rows)

    def __getstate__(self) -> tuple[object, ...]:
        return self.groups, self.num_envs, self._exchange_bytes, self.arena

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.groups, self.num_envs, self._exchange_bytes, self.arena = state  # type: ignore[assignment]
        self._layout(self.arena)
