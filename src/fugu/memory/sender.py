"""A thread that sends the rows of a journal, in batches, until they are where they belong."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.memory.journal import Entry, Journal

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """Rows that will never be taken as they are."""


@dataclass(frozen=True)
class Backoff:
    """How long to wait after a failure: twice as long after each, up to a limit."""

    first: float = 0.3
    longest: float = 8.0

    def seconds(self, failures: int, asked: float = 0.0) -> float:
        """The pause after so many failures, the longer if the service has asked for more."""
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return max(pause * random.uniform(0.75, 1.0), min(asked, self.longest))


@dataclass(frozen=True)
class Report:
    """What became of the rows."""

    sent: int
    """Rows that were acknowledged."""
    unsent: int
    """Rows that wait in the journal, for the next process."""
    refused: int
    """Rows that the service will not take, in the journal's `refused.jsonl`."""
    journal: Path
    problem: str
    """The last failure; empty if there was none since the last success."""


class Sender:
    """Sends in the background; nothing that it waits for keeps the process from ending.

    Args:
        journal: Where the rows wait.
        send: Delivers rows or raises: RefusedError for rows that will never be taken, anything
            else to be tried again. An attribute `retry_after` of the error is a pause in seconds.
        batch_rows: Rows in a batch, at most.
        batch_seconds: How long a batch waits to become full.
        backoff: Pauses after failures.
    """

    def __init__(
        self,
        journal: Journal,
        send: Callable[[Sequence[dict[str, Any]]], None],
        *,
        batch_rows: int,
        batch_seconds: float,
        backoff: Backoff,
    ) -> None:
        self._journal, self._send, self._backoff = journal, send, backoff
        self._batch_rows, self._batch_seconds = batch_rows, batch_seconds
        self._wake = threading.Condition()
        self._kicks = 0  # how often somebody could not wait
        self._hurry = self._closing = self._gone = False
        self._sent = self._refused = self._failures = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="fugu-memory-sender")
        self._thread.start()

    def notify(self) -> None:
        """Say that the journal has more rows."""
        with self._wake:
            self._wake.notify_all()

    def flush(self, seconds: float) -> bool:
        """Send at once; whether nothing waits any more, in that time."""
        self._kick()
        with self._wake:
            return self._wake.wait_for(lambda: not len(self._journal), seconds)

    def report(self) -> Report:
        """How it stands."""
        waiting = len(self._journal)
        return Report(self._sent, waiting, self._refused, self._journal.folder, self.problem)

    def close(self, seconds: float) -> Report:
        """Send what waits, in that time, and leave the rest in the journal."""
        if not self._gone:
            self._closing = True
            self._kick()
            self._thread.join(seconds)
            with self._wake:
                self._gone = True
                self._wake.notify_all()
        report = self.report()
        if report.unsent or report.refused:
            log.warning(
                "memory: %d rows were not sent and wait in %s; %d were refused. %s",
                report.unsent,
                report.journal,
                report.refused,
                report.problem,
            )
        return report

    def _kick(self) -> None:
        with self._wake:
            self._kicks, self._hurry = self._kicks + 1, True
            self._wake.notify_all()

    def _run(self) -> None:
        while not self._gone:
            kicks = self._kicks  # read before anything is looked at: none is missed
            try:
                if not self._step(kicks):
                    return
            except Exception as error:
                if self._gone:
                    return
                self._fail(error, kicks)

    def _step(self, kicks: int) -> bool:
        """Send one batch, or wait for one; False at the end."""
        size = max(1, self._batch_rows >> self._failures)  # less at once while it fails
        if not len(self._journal):
            if self._closing:
                return False
            with self._wake:
                self._hurry = self._hurry and self._kicks != kicks
            self._wait(3600.0, kicks, lambda: len(self._journal) > 0)
            return True
        if not (self._failures or self._hurry):
            self._wait(self._batch_seconds, kicks, lambda: len(self._journal) >= size)
        entries = _without_repeats(self._journal.peek(size))
        if entries:
            self._deliver(entries)
            self._failures, self.problem = 0, ""
        return True

    def _deliver(self, entries: Sequence[Entry]) -> None:
        """Send the rows; those that are refused are told apart from the others by halving."""
        try:
            self._send([entry.row for entry in entries])
        except RefusedError as error:
            if len(entries) > 1:
                middle = len(entries) // 2
                self._deliver(entries[:middle])
                self._deliver(entries[middle:])
                return
            log.warning("memory: row %s was refused: %s", entries[0].row.get("id"), error)
            self._journal.refuse(entries[0], str(error))
            self._refused += 1
        else:
            self._journal.acknowledge(entries[-1])
            self._sent += len(entries)
        self.notify()

    def _fail(self, error: Exception, kicks: int) -> None:
        self._failures += 1
        self.problem = f"{type(error).__name__}: {error}"
        if self._failures == 1:
            log.warning("memory: rows wait, sending failed: %s", self.problem)
        asked = float(getattr(error, "retry_after", 0.0))
        self._wait(self._backoff.seconds(self._failures, asked), kicks, lambda: False)

    def _wait(self, seconds: float, kicks: int, ready: Callable[[], bool]) -> None:
        """Wait until it is ready or somebody cannot wait; never longer than that."""
        with self._wake:
            self._wake.wait_for(lambda: self._gone or self._kicks != kicks or ready(), seconds)


def _without_repeats(entries: Sequence[Entry]) -> list[Entry]:
    """The first entries, up to one whose id was there before: a request may name an id once."""
    seen: set[Any] = set()
    kept: list[Entry] = []
    for entry in entries:
        if entry.row.get("id") in seen:
            break
        seen.add(entry.row.get("id"))
        kept.append(entry)
    return kept
