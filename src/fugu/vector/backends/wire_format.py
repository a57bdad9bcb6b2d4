"""The wire format of rows: the rows of some environments as one block of bytes.

Array after array, each with its environments in order. What is written only where an episode ends
comes last, and only of those environments; actions travel the other way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.envs.contract import AgentGroup, Buffers
from fugu.vector.batching import Blocks, span_of
from fugu.vector.shared_buffers import ACTIONS, ALWAYS, AT_ENDS, SharedBuffers, aligned

if native.available:
    from fugu._native import gather

Ids = NDArray[np.int64]


class RemoteBuffers(SharedBuffers):
    """The rows of one remote worker's environments, numbered as in the whole vector."""

    def __init__(
        self, groups: tuple[AgentGroup, ...], first: int, count: int, queue_bytes: int
    ) -> None:
        self.first = first
        super().__init__(groups, count, queue_bytes)

    def of_env(self, env: int) -> tuple[Buffers, ...]:
        """Return the rows of one environment, by its number in the whole vector."""
        return super().of_env(env - self.first)


class WireFormat:
    """Packs rows of buffers into blocks and writes such blocks into buffers.

    Args:
        buffers: Rows of environments.
        first: The number of the first of them.
    """

    def __init__(self, buffers: SharedBuffers, first: int = 0) -> None:
        self._buffers, self._first = buffers, first
        self._always, self._at_ends, self._actions = (
            [
                array.reshape(-1).view(np.uint8).reshape(buffers.num_envs, -1)
                for name in names
                for rows in buffers.rows
                if (array := getattr(rows, name)).size
            ]
            for names in (ALWAYS, AT_ENDS, ACTIONS)
        )
        size = self.size(buffers.num_envs)
        self._whole = buffers.memory.array(buffers.rows_offset, (size,), np.dtype(np.uint8))

    def size(self, count: int) -> int:
        """Return the bytes of the block of so many environments, without ends of episodes."""
        return sum(aligned(count * array.shape[1]) for array in self._always)

    def pack(self, env_ids: Ids) -> tuple[Blocks, Ids]:
        """Return the block of these environments, and those of them whose episode ended.

        It is the buffers' own memory where all of them are asked for and none ended: it has to be
        sent before they step again.
        """
        if not len(env_ids):
            return np.empty(0, np.uint8), env_ids
        local = env_ids - self._first
        ended = local[self._ended()[local]]
        if len(local) == self._buffers.num_envs and not len(ended):
            return self._whole, ended
        always, at_ends = self.size(len(local)), 0
        if len(ended):
            at_ends = sum(aligned(len(ended) * array.shape[1]) for array in self._at_ends)
        block = np.empty(always + at_ends, np.uint8)
        gather(local, self._always, _split(block, self._always, len(local)))
        if len(ended):
            gather(ended, self._at_ends, _split(block[always:], self._at_ends, len(ended)))
        return block, ended + self._first

    def unpack(self, env_ids: Ids, ended: Ids, block: Blocks) -> None:
        """Write the block of these environments: one copy."""
        always = self.size(len(env_ids))
        for ids, targets, part in (
            (env_ids, self._always, block),
            (ended, self._at_ends, block[always:]),
        ):
            if len(ids):
                span = span_of(ids - self._first)
                for target, rows in zip(targets, _split(part, targets, len(ids)), strict=True):
                    target[span] = rows

    def pack_actions(self, env_ids: Ids) -> bytes:
        """Return the actions of these environments, side by side."""
        parts = [array[env_ids - self._first] for array in self._actions]
        return np.concatenate(parts, axis=1).tobytes()

    def unpack_actions(self, env_ids: Ids, actions: bytes) -> None:
        """Write what `pack_actions` returned for these environments."""
        rows = np.frombuffer(actions, np.uint8).reshape(len(env_ids), -1)
        begin = 0
        for array in self._actions:
            end = begin + array.shape[1]
            array[env_ids - self._first] = rows[:, begin:end]
            begin = end

    def _ended(self) -> NDArray[np.bool_]:
        """Return in which environments some agent's episode ended."""
        ends = [
            (rows.terminations | rows.truncations).reshape(self._buffers.num_envs, -1)
            for rows in self._buffers.rows
        ]
        found: NDArray[np.bool_] = np.logical_or.reduce(np.concatenate(ends, axis=1), axis=1)
        return found


def _split(block: Blocks, arrays: list[Blocks], count: int) -> list[Blocks]:
    """Return the parts of a block that belong to these arrays, `[environments, bytes of one]`."""
    found, begin = [], 0
    for array in arrays:
        width = array.shape[1]
        found.append(block[begin : begin + count * width].reshape(count, width))
        begin = aligned(begin + count * width)
    return found
