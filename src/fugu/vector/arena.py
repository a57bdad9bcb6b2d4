"""Arenas: blocks of memory that processes share, and that vanish with the last of them."""

from __future__ import annotations

import mmap
import os
import tempfile
from math import prod
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


class Arena:
    """A zeroed block; pickled to a child process while it starts, it is the same memory there.

    It has no name in any file system, so that nothing is left behind however a process ends.
    """

    def __init__(self, nbytes: int) -> None:
        self._map(_anonymous_file(max(nbytes, 1)), max(nbytes, 1))

    def _map(self, descriptor: int, nbytes: int) -> None:
        self._descriptor, self.nbytes = descriptor, nbytes
        self._bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The array at a place."""
        size = prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)

    def close(self) -> None:
        """Let go of the file; the memory lives as long as arrays of it do."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (reduction.DupFd(self._descriptor), self.nbytes)


def _rebuild(descriptor: Any, nbytes: int) -> Arena:
    arena = Arena.__new__(Arena)
    arena._map(descriptor.detach(), nbytes)
    return arena


def _anonymous_file(nbytes: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fugu", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:  # unlinked from the start
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


def aligned(offset: int) -> int:
    """The next offset at which an array may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
