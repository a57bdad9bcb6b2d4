"""Files that strangers may have written: read whole, and only if they end."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def check_file(path: str | Path) -> None:
    """Raise OSError unless it is an ordinary file: pipes wait for ever, devices never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(None, "it is no ordinary file", str(path))


def read_bytes(path: str | Path) -> bytes:
    """The content of an ordinary file; OSError for what is none."""
    check_file(path)
    return Path(path).read_bytes()


def read_text(path: str | Path) -> str:
    """The same as text; ValueError for what is no UTF-8."""
    return read_bytes(path).decode().replace("\r\n", "\n")
