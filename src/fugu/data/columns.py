"""Columns of a dataset: .npy files that grow at their end, and are read through memory maps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fugu.core.errors import FuguError
from fugu.core.files import check_file

Kind = tuple[np.dtype[Any], tuple[int, ...]]  # of a column: its dtype, and the shape of a row


class DatasetError(FuguError, RuntimeError):
    """A dataset that is missing, broken, or of something else."""


class Column:
    """An array that grows at its end: a .npy file, whose header leaves room for a longer one."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        if path.is_symlink():
            raise DatasetError(
                f"{path}: it is a link, and would be written through. Copy the data."
            )
        if not path.exists():
            path.touch()
        try:
            check_file(path)
            self._file = path.open("r+b")
        except OSError as error:
            raise DatasetError(f"{path}: it cannot be written: {error.strerror}.") from None
        if not path.stat().st_size:
            self._write_header(0)
        self._offset = _read_header(path, (dtype, shape))
        self._rows = 0
        self._bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))  # of a row

    def append(self, arrays: Sequence[NDArray[Any]], first: int) -> None:
        """Rows from `first` on, that are on the disk when this returns; they may be given anew."""
        self._rows = first
        self._file.seek(self._offset + self._rows * self._bytes)
        for array in arrays:
            self._file.write(np.ascontiguousarray(array, self.dtype).tobytes())
            self._rows += len(array)
        self._settle()

    def cut(self, rows: int) -> None:
        """Leave only the first so many; the file may hold more, or fewer if it was damaged."""
        if os.fstat(self._file.fileno()).st_size < self._offset + rows * self._bytes:
            raise _too_short(self.path)
        self._file.truncate(self._offset + rows * self._bytes)
        self._rows = rows
        self._settle()

    def read(self, rows: int) -> NDArray[Any]:
        """The first rows."""
        if os.fstat(self._file.fileno()).st_size < self._offset + rows * self._bytes:
            raise _too_short(self.path)
        self._file.seek(self._offset)
        raw = self._file.read(rows * self._bytes)
        return np.frombuffer(raw, self.dtype).reshape(-1, *self.shape)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _settle(self) -> None:
        """Data first, then the header that counts it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._write_header(self._rows)

    def _write_header(self, rows: int) -> None:
        self._file.seek(0)
        described = npy.dtype_to_descr(self.dtype)
        header = {"descr": described, "fortran_order": False, "shape": (rows, *self.shape)}
        npy.write_array_header_1_0(self._file, header)
        self._file.flush()


def _read_header(path: Path, kind: Kind) -> int:
    """Where the numbers of a .npy file begin; DatasetError if they are not of that kind."""
    dtype, row = kind
    try:
        check_file(path)
        with path.open("rb") as file:
            npy.read_magic(file)
            shape, _, found = npy.read_array_header_1_0(file)
            offset = file.tell()
    except Exception as error:  # NumPy parses headers as Python, which fails in many ways
        raise DatasetError(f"{path}: it cannot be read: {error!s:.500}. Record it anew.") from None
    if shape[1:] != row or found != dtype:
        raise DatasetError(
            f"{path}: given {found} of shape {shape}; allowed: {dtype} of shape "
            f"(rows, {', '.join(map(str, row))})."
        )
    return offset


def map_rows(path: Path, rows: int, kind: Kind) -> NDArray[Any]:
    """The first rows of a .npy file, mapped and not read; its header may count more, or fewer."""
    offset, (dtype, row) = _read_header(path, kind), kind
    size = rows * math.prod(row) * dtype.itemsize
    if path.stat().st_size < offset + size:
        raise _too_short(path)
    if not size:
        return np.zeros((rows, *row), dtype)
    return np.memmap(path, dtype, "r", offset, (rows, *row))


def _too_short(path: Path) -> DatasetError:
    return DatasetError(f"{path}: it is shorter than its metadata says. Record it anew.")
