"""Read files that strangers may have written, within bounds of memory."""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from fugu.core.machine import free_memory

DOCUMENT = 2**26  # bytes of a file of settings or facts
LONGEST_LINE = 2**24  # bytes
UNPACKED = 2**28  # bytes of a compressed file, when unpacked


def check_file(path: str | Path) -> None:
    """Raise OSError unless it is an ordinary file: pipes wait for ever, devices never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(None, "it is no ordinary file", str(path))


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Return the content of an ordinary file; OSError for others, and for larger ones.

    By default, the file may be as large as the free memory of the machine.
    """
    check_file(path)
    size = os.stat(path).st_size
    if most is None:
        most = max(DOCUMENT, free_memory()) if size > DOCUMENT else DOCUMENT
    if size > most:
        raise OSError(None, f"expected at most {most} bytes; got {size}", str(path))
    return Path(path).read_bytes()


def read_text(path: str | Path) -> str:
    """Return the text of a file of settings; ValueError for what is no UTF-8."""
    return read_bytes(path, DOCUMENT).decode().replace("\r\n", "\n")


def read_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of an ordinary file; one whose name ends in `.gz` is unpacked.

    OSError if it is not an ordinary file, ValueError if it is broken, or it or a line is too long.
    """
    check_file(path)
    packed, held = Path(path).suffix == ".gz", 0
    opened: Any = gzip.open if packed else open
    with opened(path, "rb") as file:
        while line := _line(file):
            held += len(line)
            if packed and held > UNPACKED:
                raise ValueError(
                    f"{path}: expected at most {UNPACKED} bytes when unpacked; got more. "
                    "Unpack it first."
                )
            yield line


def _line(file: IO[bytes]) -> bytes:
    try:
        line = file.readline(LONGEST_LINE + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if len(line) > LONGEST_LINE:
        raise ValueError(f"expected lines of at most {LONGEST_LINE} bytes; got a longer one")
    return line


def parse_json(text: str | bytes, object_hook: Callable[[Any], Any] | None = None) -> Any:
    """Return the value of JSON; ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text, object_hook=object_hook)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
