"""Memory in Turbopuffer, through its own client: writes go behind, queries go together."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fugu.core.closing import Closing
from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.memory.deadline import run_within
from fugu.memory.embedders import Embedder, HashedNgrams, embed
from fugu.memory.items import ANYWHERE, By, Floats, Item, Match, Where, as_vector, check_query, each
from fugu.memory.journal import Journal
from fugu.memory.sender import Backoff, RefusedError, Report, Sender

log = logging.getLogger(__name__)

TOGETHER = 16  # queries that the service takes in one request
ATTRIBUTES = ["text", "task", "reward", "metadata"]
SCHEMA = {
    "text": {"type": "string", "full_text_search": True, "filterable": False},
    "task": {"type": "string"},
    "reward": {"type": "float"},
    "metadata": {"type": "string", "filterable": False},
}
_REFUSED = (400, 413, 422)  # the rows are at fault, not the moment
_LATER = (408, 409, 425, 429)


class RetrievalError(FuguError, RuntimeError):
    """A question that the service did not answer."""


class PartialError(Exception):
    """An answer that lacks something that was asked for."""


@dataclass(frozen=True)
class TurbopufferSettings:
    """Where the rows are, and how long to wait for them."""

    namespace: str
    """The set of rows; letters, digits, - _ and ."""
    journal: str | Path
    """The folder of rows that are not sent yet; processes may share it."""
    region: str | None = None
    """Where the service is; what TURBOPUFFER_REGION says if not given."""
    base_url: str | None = None
    """Its address, instead of a region."""
    api_key: str | None = field(default=None, repr=False)
    """The key; what TURBOPUFFER_API_KEY says if not given."""
    timeout: float = 10.0
    """Seconds for one request."""
    query_seconds: float = 30.0
    """Seconds for all the queries of a call, retries included."""
    attempts: int = 4
    """How often a query is tried."""
    first_pause: float = 0.3
    """Seconds before something is tried again; doubled each time."""
    longest_pause: float = 8.0
    """The most of those seconds."""
    batch_rows: int = 512
    """Rows in one write."""
    batch_seconds: float = 1.0
    """How long a write waits for more rows."""
    max_unsent: int = 1_000_000
    """Rows that may wait on disk; `add` raises beyond."""
    threads: int = 4
    """Requests at once, where a call asks more than fits one."""
    unanswered: Literal["raise", "empty"] = "raise"
    """What a query that fails does: raise RetrievalError, or find nothing and log it."""

    def __post_init__(self) -> None:
        for name in ("timeout", "query_seconds", "attempts", "batch_rows", "threads"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}: given {getattr(self, name)}; allowed: more than 0.")
        if self.unanswered not in ("raise", "empty"):
            raise UsageError(f"unanswered: given {self.unanswered!r}; allowed: raise, empty.")


class TurbopufferMemory(Closing):
    """A memory that many processes share and that outlasts them.

    `add` writes to a journal on disk and returns; a thread sends it. Rows are found once they
    are sent: `flush` waits for that. What is not sent when the process ends, or is killed, is sent
    by the next one with the same journal.

    Args:
        settings: Where and how.
        embedder: What makes vectors of texts.
    """

    def __init__(self, settings: TurbopufferSettings, embedder: Embedder | None = None) -> None:
        self.settings = settings
        self.embedder = HashedNgrams() if embedder is None else embedder
        self._package = _package()
        self._client = _client(self._package, settings)
        self._namespace = self._client.namespace(settings.namespace)
        self._backoff = Backoff(settings.first_pause, settings.longest_pause)
        self._journal = Journal(settings.journal, settings.max_unsent)
        self._sender = Sender(
            self._journal,
            self._write,
            batch_rows=settings.batch_rows,
            batch_seconds=settings.batch_seconds,
            backoff=self._backoff,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets a memory of its own, with the same settings."""
        return type(self), (self.settings, self.embedder)

    def add(self, items: Item | Iterable[Item]) -> None:
        """Remember items; they are safe on this machine when it returns, and sent later."""
        rows = [_to_row(item, self.embedder.dimensions) for item in each(items)]
        self._journal.append(rows)
        self._sender.notify()

    def query(
        self,
        texts: Sequence[str],
        k: int = 4,
        *,
        where: Where | Sequence[Where] = ANYWHERE,
        by: By = "vector",
    ) -> list[list[Match]]:
        """The `k` best items for each text, best first, in as few requests as the service allows.

        A namespace that does not exist yet is an empty one. Items have no vectors here.

        Raises:
            RetrievalError: The service did not answer in time, or not at all.
        """
        wheres = check_query(texts, k, where, by)
        if not texts:
            return []
        places: dict[tuple[str, Where], int] = {}  # the same question is asked once
        asked = [places.setdefault(key, len(places)) for key in zip(texts, wheres, strict=True)]
        questions = self._questions(list(places), k, by)
        parts = [questions[at : at + TOGETHER] for at in range(0, len(questions), TOGETHER)]
        end = time.monotonic() + self.settings.query_seconds
        calls = [partial(self._ask, part, by, end) for part in parts]
        try:
            answers = run_within(self.settings.query_seconds, calls, self.settings.threads)
        except (RetrievalError, TimeoutError) as error:
            if self.settings.unanswered == "raise":
                raise RetrievalError(f"turbopuffer: {error}. Is the service there?") from error
            log.warning("memory: %d queries found nothing: %s", len(texts), error)
            return [[] for _ in texts]
        found = [matches for answer in answers for matches in answer]
        return [list(found[place]) for place in asked]

    @property
    def unsent(self) -> int:
        """Rows that wait."""
        return len(self._journal)

    @property
    def report(self) -> Report:
        """What became of the rows so far."""
        return self._sender.report()

    def flush(self, seconds: float = 30.0) -> bool:
        """Send what waits now; whether all of it was sent in that time."""
        return self._sender.flush(seconds)

    def close(self, seconds: float = 10.0) -> Report:
        """Send what waits, in that time, and say what was not sent; that stays in the journal."""
        report = self._sender.close(seconds)
        self._journal.close()
        return report

    # ------------------------------------------------------------------ writing

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Send rows, all of them or raise; called by the sender's thread."""
        columns: dict[str, list[Any]] = {"id": [row["id"] for row in rows]}
        columns["vector"] = self._vectors(rows).tolist()
        columns |= {name: [row[name] for row in rows] for name in ATTRIBUTES}
        call = partial(
            self._namespace.write,
            upsert_columns=columns,
            distance_metric="cosine_distance",
            schema=SCHEMA,
            timeout=self.settings.timeout,
        )
        try:
            (answer,) = run_within(self.settings.timeout, [call])
        except self._package.APIStatusError as error:
            if error.status_code in _REFUSED:
                raise RefusedError(str(error)) from error
            error.retry_after = _retry_after(error)
            raise
        written = getattr(answer, "rows_affected", None)
        if written != len(rows):
            raise PartialError(f"{written} of {len(rows)} rows were written")

    def _vectors(self, rows: Sequence[Mapping[str, Any]]) -> Floats:
        vectors = embed(self.embedder, [row["text"] for row in rows]).copy()
        for vector, row in zip(vectors, rows, strict=True):
            if row.get("vector"):
                given = np.frombuffer(base64.b64decode(row["vector"]), "<f4")
                if given.shape != vector.shape:
                    raise RefusedError(f"its vector has {len(given)} numbers, not {len(vector)}")
                vector[:] = given
        return vectors

    # ------------------------------------------------------------------ asking

    def _questions(
        self, asked: Sequence[tuple[str, Where]], k: int, by: By
    ) -> list[dict[str, Any]]:
        texts = [text for text, _ in asked]
        ranks: list[tuple[str, str, Any]]
        if by == "vector":
            ranks = [("vector", "ANN", row.tolist()) for row in embed(self.embedder, texts)]
        else:
            ranks = [("text", "BM25", text) for text in texts]
        questions = []
        for rank, (_, where) in zip(ranks, asked, strict=True):
            question = {"rank_by": rank, "top_k": k, "include_attributes": ATTRIBUTES}
            filters = _filters(where)
            questions.append(question | ({"filters": filters} if filters else {}))
        return questions

    def _ask(self, questions: Sequence[dict[str, Any]], by: By, end: float) -> list[list[Match]]:
        """The answers to questions of one request, tried again where that may help."""
        problem: Exception | None = None
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
                status = getattr(error, "status_code", None)
                if status is not None and 400 <= status < 500 and status not in _LATER:
                    break
                pause = self._backoff.seconds(attempt, _retry_after(error))
                if attempt < self.settings.attempts:
                    time.sleep(max(0.0, min(pause, end - time.monotonic())))
        raise RetrievalError(f"{type(problem).__name__}: {problem}") from problem

    def _ask_once(
        self, questions: Sequence[dict[str, Any]], by: By, timeout: float
    ) -> list[list[Match]]:
        answer = self._namespace.multi_query(queries=questions, timeout=timeout)
        results = getattr(answer, "results", None) or []
        if len(results) != len(questions) or any(result.rows is None for result in results):
            raise PartialError(f"{len(results)} of {len(questions)} queries were answered")
        return [[_to_match(row, by) for row in result.rows] for result in results]


def _package() -> Any:
    try:
        return importlib.import_module("turbopuffer")
    except ImportError as error:
        raise MissingExtraError("turbopuffer", "memory") from error


def _client(package: Any, settings: TurbopufferSettings) -> Any:
    make: Callable[..., Any] = package.Turbopuffer
    try:
        return make(
            api_key=settings.api_key,
            region=settings.region,
            base_url=settings.base_url,
            timeout=settings.timeout,
            max_retries=0,  # tried again here, where it can be cut short
            telemetry=False,
        )
    except package.TurbopufferError as error:
        raise UsageError(f"turbopuffer: {error}") from error


def _to_row(item: Item, dimensions: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": item.id,
        "text": item.text,
        "task": item.task,
        "reward": float(item.reward),
        "metadata": json.dumps(dict(item.metadata)),
    }
    if item.vector is not None:
        vector = as_vector(f"item {item.id}", item.vector, dimensions)
        row["vector"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
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


def _filters(where: Where) -> tuple[Any, ...] | None:
    terms = [
        (name, operator, value)
        for name, operator, value in (
            ("task", "Eq", where.task),
            ("task", "NotEq", where.not_task),
            ("reward", "Gte", where.min_reward),
            ("reward", "Lte", where.max_reward),
        )
        if value is not None
    ]
    return ("And", tuple(terms)) if terms else None


def _retry_after(error: Any) -> float:
    """The pause that an answer asks for, in seconds; 0 if it asks for none."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        return max(0.0, float(headers.get("retry-after", 0.0)))
    except ValueError:
        return 0.0
