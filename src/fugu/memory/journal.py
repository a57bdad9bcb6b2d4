"""A queue of rows on disk: what was not sent yet outlasts the process, and the next one sends it.

Rows stand in segments, files of lines that are locked by the process that owns them. A line
`{"sent": 1234}` says that the bytes before 1234 were acknowledged. A segment whose owner has gone
is taken over by the next that opens the folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.core.records import RecordWriter, from_line

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

SEGMENT = 8 << 20  # bytes after which a new file begins
ENDING = ".rows"
SENT = "sent"
CHUNK = 1 << 16


@dataclass(frozen=True)
class Entry:
    """A row that waits."""

    row: dict[str, Any]
    segment: _Segment
    end: int
    """Where its line ends."""


class Journal:
    """Rows in order, until they are acknowledged. Safe for several threads.

    Args:
        folder: Where the files are; several processes may share it.
        max_rows: How many rows may wait.
    """

    def __init__(self, folder: str | Path, max_rows: int = 1_000_000) -> None:
        self.folder = Path(folder)
        self.max_rows = max_rows
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._segments = _orphans(self.folder)
        self._open = True

    def __len__(self) -> int:
        """Rows that wait."""
        with self._lock:
            return sum(segment.waiting for segment in self._segments)

    @property
    def refused_path(self) -> Path:
        """The file of rows that cannot be sent."""
        return self.folder / "refused.jsonl"

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows behind the others: when it returns, a killed process does not lose them."""
        with self._lock:
            self._check_open()
            waiting = sum(segment.waiting for segment in self._segments)
            if waiting + len(rows) > self.max_rows:
                raise UsageError(
                    f"journal {self.folder}: {waiting} rows wait and {len(rows)} more are given; "
                    f"allowed: {self.max_rows}. See why they cannot be sent, or allow more."
                )
            if not self._segments or self._segments[-1].size > SEGMENT:
                self._segments.append(_Segment.create(self.folder))
            self._segments[-1].append(rows)

    def peek(self, limit: int) -> list[Entry]:
        """The first rows that wait, at most `limit`, all of one segment."""
        with self._lock:
            self._check_open()
            self._drop_sent()
            for segment in self._segments:
                entries = segment.peek(limit)
                if entries:
                    return entries
            return []

    def acknowledge(self, entry: Entry) -> None:
        """This row and all before it are where they belong."""
        with self._lock:
            self._check_open()
            entry.segment.acknowledge(entry.end)
            self._drop_sent()

    def refuse(self, entry: Entry, reason: str) -> None:
        """Keep a row that cannot be sent in another file, and go on behind it."""
        with RecordWriter(self.refused_path) as file:
            file.append([{**entry.row, "refused": reason}])
        self.acknowledge(entry)

    def close(self) -> None:
        """Leave what waits to the next process; once more does nothing."""
        with self._lock:
            if self._open:
                self._drop_sent()
                for segment in self._segments:
                    segment.close()
            self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError(f"journal {self.folder}: it is closed; allowed: rows before that.")

    def _drop_sent(self) -> None:
        """Delete segments of which everything is acknowledged."""
        for segment in [segment for segment in self._segments if not segment.waiting]:
            self._segments.remove(segment)
            segment.path.unlink(missing_ok=True)
            segment.close()


class _Segment:
    """One file of the journal."""

    def __init__(self, path: Path, writer: RecordWriter) -> None:
        self.path, self._writer = path, writer
        self._head, self.waiting = 0, 0
        self._scan()

    @classmethod
    def create(cls, folder: Path) -> _Segment:
        """A new one, locked before anybody can see it."""
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        hidden = folder / f".{name}.new"
        writer = RecordWriter(hidden)
        _lock(writer)
        path = folder / f"{name}{ENDING}"
        hidden.rename(path)
        return cls(path, writer)

    @property
    def size(self) -> int:
        return os.fstat(self._writer.fileno()).st_size

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._writer.append(rows)
        self.waiting += len(rows)

    def peek(self, limit: int) -> list[Entry]:
        entries: list[Entry] = []
        for line, end in self._lines(self._head):
            row = from_line(line)
            if row is not None and SENT not in row:
                entries.append(Entry(row, self, end))
                if len(entries) == min(limit, self.waiting):
                    break
        if not entries:  # somebody has spoilt the file
            self.waiting = 0
        return entries

    def acknowledge(self, end: int) -> None:
        for line, at in self._lines(self._head):
            if at > end:
                break
            row = from_line(line)
            self.waiting -= row is not None and SENT not in row
        self._writer.append([{SENT: end}])
        self._head = end

    def close(self) -> None:
        self._writer.close()

    def _scan(self) -> None:
        """Find what waits in a file that another process left."""
        rows: list[int] = []
        for line, end in self._lines(0):
            record = from_line(line)
            if record is not None and SENT in record:
                self._head = max(self._head, int(record[SENT]))
            elif record is not None:
                rows.append(end)
        self.waiting = sum(end > self._head for end in rows)

    def _lines(self, start: int) -> Iterator[tuple[bytes, int]]:
        """The whole lines from an offset on, each with where it ends."""
        rest = b""
        while chunk := os.pread(self._writer.fileno(), CHUNK, start + len(rest)):
            rest += chunk
            *lines, rest_of = rest.split(b"\n")
            for line in lines:
                start += len(line) + 1
                yield line, start
            rest = rest_of


def _orphans(folder: Path) -> list[_Segment]:
    """The segments in a folder that no process owns, oldest first."""
    found = []
    for path in sorted(folder.glob(f"*{ENDING}"), key=_age):
        with contextlib.suppress(FileNotFoundError):
            writer = RecordWriter(path)
            if _lock(writer) and os.fstat(writer.fileno()).st_ino == path.stat().st_ino:
                found.append(_Segment(path, writer))
            else:
                writer.close()
    return found


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its owner has just sent it all
        return 0.0


def _lock(writer: RecordWriter) -> bool:
    """Own a file until it is closed; False if another process does."""
    if fcntl is None:
        raise UsageError("journal: this system has no file locks (flock); allowed: one that has.")
    try:
        fcntl.flock(writer.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
