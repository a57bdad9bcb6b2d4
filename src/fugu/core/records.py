"""Records as lines of JSON, each with a checksum, so that a killed writer spoils none.

A line is plain JSON with the checksum as its last key, `{"task": "a", "crc32": "0a1b2c3d"}`, so
that any reader of JSON lines takes it.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.core.files import parse_json

log = logging.getLogger(__name__)

KEY = "crc32"
_PREFIX = f', "{KEY}": "'.encode()
_TAIL = len(_PREFIX) + 10  # eight digits and '"}'


def to_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line with its checksum.

    >>> to_line({"a": 1}).decode().strip()
    '{"a": 1, "crc32": "fba18e97"}'
    """
    if not record or KEY in record:
        raise UsageError(
            f"record: given the keys {sorted(record)}; allowed: some, but not {KEY!r}."
        )
    try:
        body = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"record: it cannot be JSON: {error}.") from None
    return body[:-1] + _PREFIX + f'{zlib.crc32(body):08x}"}}\n'.encode()


def from_line(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, None if it is torn or changed; the checksum may be missing."""
    line = line.rstrip(b"\r\n")
    if line[-_TAIL:].startswith(_PREFIX):
        given, line = line[-10:-2], line[:-_TAIL] + b"}"
        if given != f"{zlib.crc32(line):08x}".encode():
            return None
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file in order; torn or changed lines are logged and skipped."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            record = from_line(line)
            if record is None:
                log.warning("%s: line %d is broken and left out", path, number)
            else:
                yield record


class RecordWriter(Closing):
    """Appends records to a file, which several processes may share; its folder is created."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._torn = _ends_torn(self._file)

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records at once; a process that is killed later does not lose them."""
        if self._file < 0:
            raise UsageError(f"{self.path}: it is closed; allowed: records before that.")
        lines = b"".join(map(to_line, records))
        if not lines:
            return
        content = b"\n" + lines if self._torn else lines
        self._torn = True  # until all of it is there
        while content:
            content = content[os.write(self._file, content) :]
        self._torn = False

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file).st_size

    def cut(self, size: int) -> None:
        """Truncate the file to so many bytes."""
        os.ftruncate(self._file, min(size, self.size))
        self._torn = _ends_torn(self._file)

    def sync(self) -> None:
        """Wait until the records are on the disk, where a power cut cannot lose them."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _ends_torn(file: int) -> bool:
    """Return whether the last line has no end."""
    size = os.lseek(file, 0, os.SEEK_END)
    if size == 0:
        return False
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) != b"\n"
