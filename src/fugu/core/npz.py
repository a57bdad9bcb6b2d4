"""Read archives of arrays (.npz) that strangers may have written, in memory of their size."""

from __future__ import annotations

import os
import zipfile
from math import prod
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


def read_npz(file: BinaryIO) -> dict[str, NDArray[Any]]:
    """Return the arrays of an open file that `numpy.savez` wrote; ValueError for any other.

    Sizes are compared before anything is read, so the arrays take no more memory than the file has
    bytes. Compressed arrays, pickles and entries that share bytes are refused.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            declared = sum(entry.file_size for entry in entries)
            if declared > size:
                raise ValueError(
                    f"expected arrays of at most {size} bytes, the size of the file; got arrays of "
                    f"{declared} bytes"
                )
            found = {}
            for entry in entries:
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{entry.filename}: expected no compression; got some")
                with archive.open(entry) as part:
                    found[entry.filename.removesuffix(".npy")] = _read_array(part, entry)
            return found
    except ValueError:
        raise
    except Exception as error:  # zipfile and NumPy fail in many ways at what is no archive
        raise ValueError(f"it is no archive of arrays ({type(error).__name__}: {error})") from None


def _read_array(part: IO[bytes], entry: zipfile.ZipInfo) -> NDArray[Any]:
    if npy.read_magic(part) != (1, 0):
        raise ValueError(f"{entry.filename}: expected version 1.0 of the format; got another")
    shape, by_columns, dtype = npy.read_array_header_1_0(part)
    if dtype.hasobject:
        raise ValueError(f"{entry.filename}: expected numbers; got Python objects")
    header, count = part.tell(), prod(shape)
    if min(shape, default=0) < 0 or header + count * dtype.itemsize != entry.file_size:
        raise ValueError(
            f"{entry.filename}: expected {entry.file_size - header} bytes of numbers; got a header "
            f"of {dtype} {list(shape)}"
        )
    flat = np.frombuffer(part.read(), dtype, count)
    return flat.reshape(shape, order="F" if by_columns else "C").copy()
