"""A queue of rows on disk, and the thread that sends them until they are acknowledged."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.core.closing import Closing
from fugu.core.errors import DiskFullError, UsageError
from fugu.core.records import RecordWriter

log = logging.getLogger(__name__)

ENDING = ".sqlite"
FIRST_PAUSE, LONGEST_PAUSE = 0.3, 8.0  # seconds between attempts
Row = dict[str, Any]
Entry = tuple[int, Row]  # a number that rises, and the row


class Journal:
    """Rows in order, until they are acknowledged. For one thread at a time.

    Each process keeps its rows in a file of its own, which SQLite locks. Whoever opens the folder
    takes over the rows of processes that have ended, even if they were killed. A power cut may lose
    rows.

    Args:
        folder: The folder of the files; several processes may share it.
        max_rows: The largest number of rows that may wait.
    """

    def __init__(self, folder: str | Path, max_rows: int = 1_000_000) -> None:
        self.folder, self.max_rows = Path(folder), max_rows
        self.folder.mkdir(parents=True, exist_ok=True)
        left = sorted(self.folder.glob(f"*{ENDING}"), key=_modified)
        self._path = self.folder / f"{os.getpid()}-{secrets.token_hex(4)}{ENDING}"
        self._path.touch()
        self._base = _open(self._path, patience=10.0)
        with self._base:
            self._base.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, content TEXT)")
        self._count, self._closed = 0, False
        for path in left:
            self._take_over(path)

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return self._count

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows at the end; once it returns, a killed process does not lose them."""
        if self._closed:
            raise UsageError(f"journal {self.folder} is closed. Open another one.")
        if self._count + len(rows) > self.max_rows:
            raise UsageError(
                f"journal {self.folder}: expected at most {self.max_rows} rows that wait; "
                f"{self._count} wait and {len(rows)} more are given. "
                "Find out why they cannot be sent, or allow more."
            )
        try:
            self._insert((json.dumps(row),) for row in rows)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            advice = "None of these rows was stored: free some space and add them again."
            raise DiskFullError(f"{error} at {self.folder}", advice) from error

    def peek(self, limit: int) -> list[Entry]:
        """Return the first rows that wait, at most `limit`, and their numbers."""
        query = "SELECT number, content FROM rows ORDER BY number LIMIT ?"
        return [(number, json.loads(row)) for number, row in self._base.execute(query, (limit,))]

    def acknowledge(self, number: int) -> None:
        """Remove the rows up to this number."""
        with self._base:
            removed = self._base.execute("DELETE FROM rows WHERE number <= ?", (number,))
        self._count -= removed.rowcount

    def refuse(self, entry: Entry, reason: str) -> None:
        """Move the first row that waits to the file `refused.jsonl`, with the reason."""
        number, row = entry
        with RecordWriter(self.folder / "refused.jsonl") as file:
            file.append([{**row, "refused": reason}])
        self.acknowledge(number)

    def close(self) -> None:
        """Leave the rows that wait to the next process; a second call does nothing."""
        if not self._closed:
            self._base.close()
            if not self._count:
                _delete(self._path)
        self._closed = True

    def _insert(self, contents: Iterable[tuple[str]]) -> None:
        with self._base:
            added = self._base.executemany("INSERT INTO rows (content) VALUES (?)", contents)
        self._count += added.rowcount

    def _take_over(self, path: Path) -> None:
        """Move the rows of a file here, unless another process owns it."""
        try:
            base = _open(path, patience=0.0)
            with contextlib.closing(base), base:
                self._insert(base.execute("SELECT content FROM rows ORDER BY number"))
                base.execute("DELETE FROM rows")
        except sqlite3.OperationalError:  # its owner has locked, deleted or just created it
            return
        except sqlite3.DatabaseError as error:
            log.warning("memory: the journal %s is broken and left alone: %s", path, error)
            return
        _delete(path)


def _open(path: Path, patience: float) -> sqlite3.Connection:
    """Open and lock a file that exists; sqlite3.OperationalError if that takes too long."""
    base = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", patience, uri=True, check_same_thread=False
    )
    try:
        base.execute("PRAGMA locking_mode = EXCLUSIVE")  # until it is closed
        base.execute("PRAGMA synchronous = OFF")  # a kill loses nothing that was written
        base.execute("BEGIN EXCLUSIVE")
    except BaseException:
        base.close()
        raise
    return base


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}-journal").unlink(missing_ok=True)  # SQLite may leave it


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its owner has just sent it all
        return 0.0


class RefusedError(Exception):
    """The service will never accept these rows as they are."""


@dataclass(frozen=True)
class Report:
    """The state of the rows that were added to a memory."""

    sent: int
    """Rows that the service acknowledged."""
    unsent: int
    """Rows that wait in the journal, for the next process."""
    refused: int
    """Rows that the service did not accept; they are in the journal's `refused.jsonl`."""
    journal: Path
    """The folder of the journal."""
    problem: str
    """The last failure; empty if there was none since the last success."""


class Sender(Closing):
    """Base class that sends rows in a background thread, which never keeps the process alive.

    Args:
        journal: The queue of rows on disk.
        batch_rows: The largest number of rows in a batch.
        batch_seconds: How long a batch waits for more rows.
    """

    def __init__(self, journal: Journal, batch_rows: int, batch_seconds: float) -> None:
        self._journal = journal
        self._batch_rows, self._batch_seconds = batch_rows, batch_seconds
        self._size = batch_rows  # of the next batch: smaller after a failure
        self._lock = threading.Condition()  # of the journal and of what follows
        self._flushing = self._closing = self._closed = False
        self._sent = self._refused = self._failures = 0
        self._problem = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="fugu-memory-sender")
        self._thread.start()

    def _send(self, rows: Sequence[Row]) -> None:
        """Send rows; raise RefusedError if they can never be accepted, or any other error."""
        raise NotImplementedError("_send(rows) -> None")

    def _append(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self._journal.append(rows)
            self._lock.notify_all()

    def flush(self, seconds: float = 30.0) -> bool:
        """Send the rows that wait now; return whether all were sent in that time."""
        with self._lock:
            self._flushing = True
            self._lock.notify_all()
            return self._lock.wait_for(lambda: not len(self._journal), seconds)

    @property
    def report(self) -> Report:
        """The state of the rows so far."""
        with self._lock:
            unsent, folder = len(self._journal), self._journal.folder
            return Report(self._sent, unsent, self._refused, folder, self._problem)

    def close(self, seconds: float = 10.0) -> Report:
        """Send rows for that time at most; the others stay in the journal."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if not self._closed:
            self._thread.join(seconds)
        with self._lock:
            self._closed = True
            self._journal.close()
            self._lock.notify_all()
        report = self.report
        if report.unsent or report.refused:
            log.warning(
                "memory: %d rows were not sent and wait in %s; %d were refused. %s",
                report.unsent,
                report.journal,
                report.refused,
                report.problem,
            )
        return report

    def _run(self) -> None:
        while not self._closed and (len(self._journal) or not self._closing):
            try:
                self._deliver(self._next_batch())
            except Exception as error:
                self._pause(error)

    def _next_batch(self) -> list[Entry]:
        """Wait for rows, and for more of them to fill a batch."""
        with self._lock:
            self._flushing = self._flushing and len(self._journal) > 0
            self._lock.wait_for(lambda: self._closing or len(self._journal))
            if not self._failures:
                self._lock.wait_for(
                    lambda: self._closing or self._flushing or len(self._journal) >= self._size,
                    self._batch_seconds,
                )
            return self._journal.peek(self._size)

    def _deliver(self, entries: Sequence[Entry]) -> None:
        """Send rows; if they are refused, find those at fault in smaller and smaller batches."""
        if not entries:
            return
        refused = None
        try:
            self._send([row for _, row in entries])
        except RefusedError as error:
            refused = error
        with self._lock:
            if refused is None:
                self._journal.acknowledge(entries[-1][0])
                self._sent += len(entries)
                self._size = min(2 * self._size, self._batch_rows)
            else:
                if len(entries) == 1:
                    log.warning("memory: row %s was refused: %s", entries[0][1]["id"], refused)
                    self._journal.refuse(entries[0], str(refused))
                    self._refused += 1
                self._size = max(1, len(entries) // 2)
            self._failures, self._problem = 0, ""
            self._lock.notify_all()

    def _pause(self, error: Exception) -> None:
        """Wait before the next attempt; a call of `close` ends the pause once."""
        with self._lock:
            if self._closed:
                return
            self._failures += 1
            self._size = max(1, self._size // 2)
            self._problem = f"{type(error).__name__}: {error}"
            if self._failures == 1:
                log.warning("memory: rows wait, sending failed: %s", self._problem)
            closing = self._closing
            self._lock.wait_for(
                lambda: self._closed or self._closing != closing,
                seconds_before_retry(self._failures, error),
            )


def seconds_before_retry(failures: int, error: Exception) -> float:
    """Return the pause before another attempt: longer after each failure, or as a service asks.

    Args:
        failures: The number of failures in a row.
        error: The last one; the header `Retry-After` of its response is obeyed within limits.
    """
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 30))
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        asked = float(headers.get("retry-after", 0.0))
    except ValueError:
        asked = 0.0
    return max(pause * random.uniform(0.75, 1.0), min(asked, LONGEST_PAUSE))
