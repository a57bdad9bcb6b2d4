"""Parcels: the rows of some environments as one block of bytes, for workers on other machines.

Array after array, each with its environments in order. What is written only where an episode ends
comes last and only of those environments; actions travel the other way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.envs.contract import AgentGroup, Buffers
from fugu.vector.arena import aligned
from fugu.vector.gathering import Blocks, span_of
from fugu.vector.slab import FIELDS, Slab

if native.available:
    from fugu._native import gather

Ids = NDArray[np.int64]
Names = tuple[str, ...]
AT_ENDS = ("final", "final_state")
ACTIONS = ("actions",)
ALWAYS = tuple(name for name in FIELDS if name not in AT_ENDS + ACTIONS)


@dataclass(frozen=True)
class Place:
    """Where an array stands in a block.

    Attributes:
        group: The group it is of.
        name: Its name in `Buffers`.
        offset: Of its first byte.
        width: Bytes of one environment.
    """

    group: int
    name: str
    offset: int
    width: int


class Plan:
    """How the blocks of environments with these groups of agents look."""

    def __init__(self, groups: tuple[AgentGroup, ...]) -> None:
        self._groups = groups
        self._made: dict[tuple[Names, int], tuple[tuple[Place, ...], int]] = {}

    def places(self, names: Names, count: int) -> tuple[Place, ...]:
        """Where these arrays of `count` environments stand; those without bytes are left out."""
        return self._find(names, count)[0]

    def size(self, names: Names, count: int) -> int:
        """Bytes of the block."""
        return self._find(names, count)[1]

    def split(self, block: Blocks, names: Names, count: int) -> list[Blocks]:
        """The arrays of a block, `[environments, bytes of one]`."""
        return [
            block[place.offset : place.offset + count * place.width].reshape(count, place.width)
            for place in self.places(names, count)
        ]

    def of_slab(self, slab: Slab, names: Names) -> list[Blocks]:
        """The same arrays of a slab, in the same order."""
        arrays = [getattr(slab.rows[p.group], p.name) for p in self.places(names, 1)]
        return [array.reshape(-1).view(np.uint8).reshape(slab.num_envs, -1) for array in arrays]

    def _find(self, names: Names, count: int) -> tuple[tuple[Place, ...], int]:
        if (names, count) not in self._made:
            found, end = [], 0
            for group in range(len(self._groups)):
                specs = Buffers.specs(self._groups[group])
                for name in names:
                    shape, dtype = specs[name]
                    width = int(np.prod(shape)) * dtype.itemsize
                    if width:
                        found.append(Place(group, name, end, width))
                    end = aligned(end + count * width)
            self._made[names, count] = tuple(found), end
        return self._made[names, count]


class Desk(Slab):
    """The rows of one worker's environments, in memory as a parcel of all of them is."""

    def __init__(
        self, groups: tuple[AgentGroup, ...], first: int, count: int, exchange_bytes: int
    ) -> None:
        self._first, self._plan = first, Plan(groups)
        super().__init__(groups, count, exchange_bytes)
        size = self._plan.size(ALWAYS, count)
        self._whole = self.arena.array(aligned(exchange_bytes), (size,), np.dtype(np.uint8))
        self._always = self._plan.of_slab(self, ALWAYS)
        self._at_ends = self._plan.of_slab(self, AT_ENDS)
        self._actions = self._plan.of_slab(self, ACTIONS)

    def _order(self) -> list[tuple[int, str]]:
        groups = range(len(self.groups))
        return [
            (group, name)
            for names in (ALWAYS, AT_ENDS, ACTIONS)
            for group in groups
            for name in names
        ]

    def of_env(self, env: int) -> tuple[Buffers, ...]:
        """The rows of one environment, by its number in the whole vector."""
        return super().of_env(env - self._first)

    def write_actions(self, env_ids: Ids, actions: bytes) -> None:
        """Write what `read_actions` read of these environments."""
        rows = np.frombuffer(actions, np.uint8).reshape(len(env_ids), -1)
        begin = 0
        for block in self._actions:
            end = begin + block.shape[1]
            block[env_ids - self._first] = rows[:, begin:end]
            begin = end

    def pack(self, env_ids: Ids) -> tuple[Blocks, Ids]:
        """The parcel of these environments, and those of them whose episode ended.

        It is the desk itself where all of them are asked for and none ended: it has to be sent
        before they step again.
        """
        if not len(env_ids):
            return np.empty(0, np.uint8), env_ids
        local = env_ids - self._first
        ended = local[self._ended()[local]]
        if len(local) == self.num_envs and not len(ended):
            return self._whole, ended
        plan, always = self._plan, self._plan.size(ALWAYS, len(local))
        block = np.empty(always + plan.size(AT_ENDS, len(ended)), np.uint8)
        gather(local, self._always, plan.split(block, ALWAYS, len(local)))
        if len(ended):
            gather(ended, self._at_ends, plan.split(block[always:], AT_ENDS, len(ended)))
        return block, ended + self._first

    def _ended(self) -> NDArray[np.bool_]:
        """Of which environments some agent's episode ended."""
        ends = [
            (rows.terminations | rows.truncations).reshape(self.num_envs, -1) for rows in self.rows
        ]
        found: NDArray[np.bool_] = np.logical_or.reduce(np.concatenate(ends, axis=1), axis=1)
        return found


class Unpacker:
    """Writes parcels into a slab: one copy. And reads the actions that go the other way."""

    def __init__(self, slab: Slab) -> None:
        self._plan = Plan(slab.groups)
        self._always = self._plan.of_slab(slab, ALWAYS)
        self._at_ends = self._plan.of_slab(slab, AT_ENDS)
        self._actions = self._plan.of_slab(slab, ACTIONS)

    def write(self, env_ids: Ids, ended: Ids, block: Blocks) -> None:
        """Write the parcel of these environments."""
        always = self._plan.size(ALWAYS, len(env_ids))
        for names, ids, targets, part in (
            (ALWAYS, env_ids, self._always, block),
            (AT_ENDS, ended, self._at_ends, block[always:]),
        ):
            if len(ids):
                span, rows = span_of(ids), self._plan.split(part, names, len(ids))
                for target, each in zip(targets, rows, strict=True):
                    target[span] = each

    def read_actions(self, env_ids: Ids) -> bytes:
        """The actions of these environments, side by side."""
        parts = [block[env_ids] for block in self._actions]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).tobytes()
