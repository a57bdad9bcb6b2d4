"""Write files completely or not at all, and report full disks."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fugu.core.errors import DiskFullError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Replace a file in one rename; if that fails, the old file stays and nothing is left over.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "note", "text")
    ...     (Path(folder) / "note").read_text()
    'text'
    """
    write_together({Path(path): content})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """Replace several files, none before all are on the disk."""
    fresh = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}") for path in contents}
    try:
        for path, content in contents.items():
            with fresh[path].open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
        for path, new in fresh.items():
            new.replace(path)
    finally:
        for new in fresh.values():
            new.unlink(missing_ok=True)


@contextlib.contextmanager
def tells_full_disk(advice: Callable[[], str]) -> Iterator[None]:
    """Raise a DiskFullError with advice where a disk or a quota is full."""
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        place = f" at {error.filename}" if error.filename else ""
        raise DiskFullError(f"{error.strerror}{place}", advice()) from error
