"""SharedBuffers: one contiguous array of each kind for all agents of all environments."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import fields
from itertools import product
from math import prod
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.envs.contract import AgentGroup, Buffers

ALIGNMENT = 64
POISON = 0xAB
FIELDS = tuple(field.name for field in fields(Buffers))
AT_ENDS = ("final", "final_state")  # written only where an episode ends
ACTIONS = ("actions",)
ALWAYS = tuple(name for name in FIELDS if name not in AT_ENDS + ACTIONS)


class SharedMemory:
    """A zeroed block; pickled to a child process while it starts, it is the same memory there.

    It has no name in any file system, so that nothing is left behind however a process ends.
    """

    def __init__(self, nbytes: int) -> None:
        self._map(_anonymous_file(max(nbytes, 1)), max(nbytes, 1))

    def _map(self, descriptor: int, nbytes: int) -> None:
        self._descriptor, self.nbytes = descriptor, nbytes
        self._bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the array that begins at an offset."""
        size = prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)

    def close(self) -> None:
        """Close the file; the memory lives as long as arrays of it do."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (reduction.DupFd(self._descriptor), self.nbytes)


def _rebuild(descriptor: Any, nbytes: int) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory._map(descriptor.detach(), nbytes)
    return memory


def _anonymous_file(nbytes: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fugu", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:  # unlinked from the start
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


def aligned(offset: int) -> int:
    """Return the next offset at which an array may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


class SharedBuffers:
    """All rows of all groups, and the memory of the step queue, in one block.

    Environment `e` owns the rows from `e * group.num_agents` on of each group, and row `e` of what
    there is once for an environment. What is sent to a learner elsewhere in every step comes first.
    """

    def __init__(self, groups: tuple[AgentGroup, ...], num_envs: int, queue_bytes: int) -> None:
        self.groups, self.num_envs, self._queue_bytes = groups, num_envs, queue_bytes
        self.rows_offset = aligned(queue_bytes)
        self.memory = SharedMemory(self._place(None))
        self._place(self.memory)

    def _place(self, memory: SharedMemory | None) -> int:
        """Place every array, and make them if there is memory; return the bytes that it takes."""
        if memory:
            self.queue_memory = memory.array(0, (self._queue_bytes,), np.dtype(np.uint8))
        end = self.rows_offset
        arrays: list[dict[str, NDArray[np.generic]]] = [{} for _ in self.groups]
        for name, group in product(ALWAYS + AT_ENDS + ACTIONS, range(len(self.groups))):
            shape, dtype = Buffers.specs(self.groups[group])[name]
            whole = (self.num_envs * shape[0], *shape[1:])
            if memory:
                arrays[group][name] = memory.array(end, whole, dtype)
            end = aligned(end + prod(whole) * dtype.itemsize)
        if memory:
            rows = tuple(Buffers(**each) for each in arrays)  # type: ignore[arg-type]
            self.rows: tuple[Buffers, ...] = rows
        return end

    def of_env(self, env: int) -> tuple[Buffers, ...]:
        """Return the rows of one environment."""
        return tuple(rows.of_envs(env, env + 1, self.num_envs) for rows in self.rows)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.groups, self.num_envs, self._queue_bytes, self.rows_offset, self.memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.groups, self.num_envs, self._queue_bytes, self.rows_offset, self.memory = state
        self._place(self.memory)
