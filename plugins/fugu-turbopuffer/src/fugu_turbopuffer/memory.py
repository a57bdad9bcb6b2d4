"""Memory in Turbopuffer, through its own client: writes in the background, queries in batches."""

from __future__ import annotations

import importlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from fugu.core.errors import FuguError, UsageError
from fugu.memory.embedders import Embedder, HashedNgrams, embed
from fugu.memory.items import ANYWHERE, By, Item, Match, Where, as_items, as_vector, check_query
from fugu_turbopuffer.journal import Journal, RefusedError, Row, Sender, seconds_before_retry

log = logging.getLogger(__name__)
T = TypeVar("T")

QUERIES = 16  # that the service takes in one request
REQUESTS = 4  # at the same time
SCHEMA = {
    "text": {"type": "string", "full_text_search": True, "filterable": False},
    "task": {"type": "string"},
    "reward": {"type": "float"},
    "metadata": {"type": "string", "filterable": False},
}
_REFUSED = (400, 413, 422)  # statuses that blame the rows
_TRANSIENT = (408, 409, 425, 429)  # statuses below 500 that may pass


class RetrievalError(FuguError, RuntimeError):
    """The service did not answer a query."""


class PartialError(Exception):
    """An answer of the service lacks a part."""


@dataclass(frozen=True)
class TurbopufferSettings:
    """Where the rows are stored, and how long to wait for the service."""

    namespace: str
    """The name of the set of rows: letters, digits, - _ and ."""
    journal: str | Path
    """The folder of rows that are not sent yet; processes may share it."""
    region: str | None = None
    """The region of the service; None: TURBOPUFFER_REGION."""
    base_url: str | None = None
    """The address of the service, instead of a region."""
    api_key: str | None = field(default=None, repr=False)
    """The key; None: TURBOPUFFER_API_KEY."""
    timeout: float = 10.0
    """Seconds for one request."""
    query_seconds: float = 30.0
    """Seconds for all requests of one call of `query`, with new attempts."""
    attempts: int = 4
    """The largest number of attempts for a query."""
    batch_rows: int = 512
    """The largest number of rows in one write."""
    batch_seconds: float = 1.0
    """Seconds that a write waits for more rows."""
    max_unsent: int = 1_000_000
    """The largest number of rows that wait on disk; beyond, `add` raises UsageError."""
    unanswered: Literal["raise", "empty"] = "raise"
    """What a failed query does: raise RetrievalError, or find nothing and log a warning."""

    def __post_init__(self) -> None:
        for name in ("timeout", "query_seconds", "attempts", "batch_rows"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}: expected more than 0; got {getattr(self, name)}.")
        if self.unanswered not in ("raise", "empty"):
            raise UsageError(
                f"unanswered: expected one of 'raise', 'empty'; got {self.unanswered!r}."
            )


class TurbopufferMemory(Sender):
    """A memory that many processes share and that outlives them.

    `add` writes to a journal on disk and returns; a thread sends the rows. Queries find rows that
    were sent: `flush` waits for that. The rows that were not sent when the process ends or is
    killed are sent by the next process with the same journal.

    Args:
        settings: Where the rows are stored, and how long to wait for the service.
        embedder: The function that makes vectors of texts; None: hashed n-grams.
    """

    def __init__(self, settings: TurbopufferSettings, embedder: Embedder | None = None) -> None:
        self.settings = settings
        self.embedder = HashedNgrams() if embedder is None else embedder
        self._package: Any = importlib.import_module("turbopuffer")  # slow to import
        try:
            client = self._package.Turbopuffer(
                api_key=settings.api_key,
                region=settings.region,
                base_url=settings.base_url,
                timeout=settings.timeout,
                max_retries=0,  # retried here, within a limit of time
                telemetry=False,
            )
        except self._package.TurbopufferError as error:
            raise UsageError(f"turbopuffer: {error}") from error
        self._namespace = client.namespace(settings.namespace)
        journal = Journal(settings.journal, settings.max_unsent)
        super().__init__(journal, settings.batch_rows, settings.batch_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        """Give another process a memory of its own with the same settings."""
        return type(self), (self.settings, self.embedder)

    def add(self, items: Item | Iterable[Item]) -> None:
        """Store items: they are safe on this machine when it returns, and sent later."""
        self._append([_to_row(item, self.embedder.dimensions) for item in as_items(items)])

    def query(
        self,
        texts: Sequence[str],
        k: int = 4,
        *,
        where: Where | Sequence[Where] = ANYWHERE,
        by: By = "vector",
    ) -> list[list[Match]]:
        """Return the `k` best items for each text, best first, in as few requests as possible.

        A namespace that does not exist yet is empty. The items have no vectors.

        Raises:
            RetrievalError: If the service does not answer within `query_seconds` and `attempts`.
        """
        asked = list(zip(texts, check_query(texts, k, where, by), strict=True))
        different = list(dict.fromkeys(asked))
        questions = self._questions(different, k, by)
        end = time.monotonic() + self.settings.query_seconds
        calls = [
            partial(self._ask, questions[first : first + QUERIES], by, end)
            for first in range(0, len(questions), QUERIES)
        ]
        try:
            answers = run_within(self.settings.query_seconds, calls, REQUESTS)
        except (RetrievalError, TimeoutError) as error:
            if self.settings.unanswered == "raise":
                raise RetrievalError(f"turbopuffer: {error}. Is the service there?") from error
            log.warning("memory: %d queries found nothing: %s", len(texts), error)
            return [[] for _ in texts]
        found = dict(zip(different, chain.from_iterable(answers), strict=True))
        return [list(found[question]) for question in asked]

    # ------------------------------------------------------------------ writing

    def _send(self, rows: Sequence[Row]) -> None:
        rows = list({row["id"]: row for row in rows}.values())  # a request may name an id once
        vectors = embed(self.embedder, [row["text"] for row in rows]).tolist()
        for place, row in enumerate(rows):
            given = row.get("vector") or vectors[place]
            if len(given) != self.embedder.dimensions:
                raise RefusedError(
                    f"expected a vector of {self.embedder.dimensions} numbers; got {len(given)}"
                )
            vectors[place] = given
        call = partial(
            self._namespace.write,
            upsert_columns={name: [row[name] for row in rows] for name in ("id", *SCHEMA)}
            | {"vector": vectors},
            distance_metric="cosine_distance",
            schema=SCHEMA,
            timeout=self.settings.timeout,
        )
        try:
            (answer,) = run_within(self.settings.timeout, [call])
        except self._package.APIStatusError as error:
            if error.status_code in _REFUSED:
                raise RefusedError(str(error)) from error
            raise
        written = getattr(answer, "rows_affected", None)
        if written != len(rows):
            raise PartialError(f"{written} of {len(rows)} rows were written")

    # ------------------------------------------------------------------ queries

    def _questions(self, asked: Sequence[tuple[str, Where]], k: int, by: By) -> list[Row]:
        texts = [text for text, _ in asked]
        ranks: list[tuple[str, str, Any]]
        if by == "vector":
            ranks = [("vector", "ANN", vector) for vector in embed(self.embedder, texts).tolist()]
        else:
            ranks = [("text", "BM25", text) for text in texts]
        return [
            {"rank_by": rank, "top_k": k, "include_attributes": [*SCHEMA], **_filters(where)}
            for rank, (_, where) in zip(ranks, asked, strict=True)
        ]

    def _ask(self, questions: Sequence[Row], by: By, end: float) -> list[list[Match]]:
        """Return the answers to the questions of one request, after several attempts if needed."""
        problem: Exception = TimeoutError("there was no time left")
        for attempt in range(1, self.settings.attempts + 1):
            timeout = min(self.settings.timeout, end - time.monotonic())
            if timeout <= 0:
                break
            try:
                return self._ask_once(questions, by, timeout)
            except self._package.NotFoundError:
                return [[] for _ in questions]
            except Exception as error:
                problem = error
                status = getattr(error, "status_code", 500)
                if 400 <= status < 500 and status not in _TRANSIENT:
                    break
                if attempt < self.settings.attempts:
                    pause = seconds_before_retry(attempt, error)
                    time.sleep(max(0.0, min(pause, end - time.monotonic())))
        raise RetrievalError(f"{type(problem).__name__}: {problem}") from problem

    def _ask_once(self, questions: Sequence[Row], by: By, timeout: float) -> list[list[Match]]:
        answer = self._namespace.multi_query(queries=questions, timeout=timeout)
        results = getattr(answer, "results", None) or []
        if len(results) != len(questions) or any(result.rows is None for result in results):
            raise PartialError(f"{len(results)} of {len(questions)} queries were answered")
        return [[_to_match(row, by) for row in result.rows] for result in results]


def run_within(seconds: float, calls: Sequence[Callable[[], T]], threads: int = 1) -> list[T]:
    """Return the results of the calls, which run in so many threads; raise the first error.

    A socket's own timeout does not end an answer that arrives byte by byte; this does.

    Raises:
        TimeoutError: If the calls take longer. Those that run are abandoned in threads that do not
            keep the process alive; no other begins.
    """
    futures: list[Future[T]] = [Future() for _ in calls]
    todo = iter(list(zip(futures, calls, strict=True)))

    def work() -> None:
        for future, call in todo:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(min(threads, len(calls))):
        threading.Thread(target=work, daemon=True, name="fugu-memory-call").start()
    done, waiting = wait(futures, seconds, FIRST_EXCEPTION)
    for future in waiting:
        future.cancel()
    for future in done:
        future.result()
    if waiting:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return [future.result() for future in futures]


def _to_row(item: Item, dimensions: int) -> Row:
    row: Row = {
        "id": item.id,
        "text": item.text,
        "task": item.task,
        "reward": item.reward,
        "metadata": json.dumps(dict(item.metadata)),
    }
    if item.vector is not None:
        row["vector"] = as_vector(f"item {item.id}", item.vector, dimensions).tolist()
    return row


def _to_match(row: Any, by: By) -> Match:
    distance = float(row["$dist"])
    item = Item(
        row["text"],
        reward=float(row["reward"]),
        task=row["task"],
        id=str(row["id"]),
        metadata=json.loads(row["metadata"]),
    )
    return Match(item, 1.0 - distance if by == "vector" else distance)


def _filters(where: Where) -> Row:
    terms = [
        ("task", "Eq", where.task),
        ("task", "NotEq", where.not_task),
        ("reward", "Gte", where.min_reward),
        ("reward", "Lte", where.max_reward),
    ]
    given = tuple(term for term in terms if term[2] is not None)
    return {"filters": ("And", given)} if given else {}
