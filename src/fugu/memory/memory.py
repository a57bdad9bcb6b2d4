"""Memory: items in this process, found again by vectors or by words."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.files import check_file, parse_json
from fugu.core.npz import read_npz
from fugu.memory import exact, neighbours
from fugu.memory.bm25 import Bm25
from fugu.memory.embedders import Embedder, HashedNgrams, embed
from fugu.memory.items import ANYWHERE, By, Floats, Item, Match, Where, as_vector, check_query, each
from fugu.memory.table import Table, plain

SCHEMA = 1
MANY = 100_000  # rows above which exact search takes too long
MOST_DIMENSIONS = 65_536
SPARE = 1024  # empty rows that are not worth a new table
SLICE = 256  # rows that enter the graph with a call
Metric = Literal["cosine", "dot"]
Answer = tuple[exact.Rows, exact.Scores]


class Memory:
    """Items, found again by vectors or by words; exact up to `approximate_above` rows.

    Of equal scores the item that was added first comes first. For one thread at a time.

    Args:
        embedder: What makes vectors of texts; None: vectors are given, or there are none.
        dimensions: Numbers in a vector, where there is no embedder; 0: no vectors.
        metric: How vectors are compared.
        approximate_above: Above so many items, `usearch` looks for neighbours, if it is installed.

    >>> memory = Memory()
    >>> memory.add(Item("def double(x): return 2 * x", reward=1.0, task="double"))
    >>> memory.add(Item("def first(items): return items[0]", reward=1.0, task="first"))
    >>> [[match.item.task] for (match,) in memory.query(["return twice x: 2 * x"], k=1)]
    [['double']]
    """

    def __init__(
        self,
        embedder: Embedder | Literal["default"] | None = "default",
        *,
        dimensions: int = 0,
        metric: Metric = "cosine",
        approximate_above: int = MANY,
    ) -> None:
        if metric not in ("cosine", "dot"):
            raise UsageError(f"metric: given {metric!r}; allowed: cosine, dot.")
        if dimensions < 0 or approximate_above < 0:
            given = min(dimensions, approximate_above)
            raise UsageError(f"memory: given {given}; allowed: 0 or more.")
        if dimensions > MOST_DIMENSIONS:
            raise UsageError(f"dimensions: expected at most {MOST_DIMENSIONS}; got {dimensions}.")
        self.embedder = HashedNgrams() if embedder == "default" else embedder
        self.dimensions = dimensions if self.embedder is None else self.embedder.dimensions
        if self.embedder is not None and dimensions not in (0, self.dimensions):
            raise UsageError(
                f"dimensions: given {dimensions} with {self.embedder.name}; "
                f"allowed: {self.dimensions}, or leave it out."
            )
        self.metric = metric
        self.approximate_above = approximate_above
        self._forget()

    def _forget(self) -> None:
        self._table = Table(self.dimensions)
        self._words: Bm25 | None = None  # made when somebody asks for words
        self._graph: neighbours.Neighbours | None = None
        self._graphed = 0  # rows that the graph has seen

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, id: str) -> bool:  # noqa: A002
        return id in self._table.row_of

    def __iter__(self) -> Iterator[Item]:
        return (item for item in self._table.items if item is not None)

    def get(self, id: str) -> Item:  # noqa: A002
        """The item of an id, with its vector, which must not be changed."""
        row = self._table.row_of.get(id)
        item = None if row is None else self._table.items[row]
        if row is None or item is None:
            raise UsageError(f"memory: given the id {id!r}; allowed: one that is there.")
        return replace(item, vector=self._table.vector(row))

    def add(self, items: Item | Iterable[Item]) -> None:
        """Remember items, all or none; one of a known id takes the old one's place."""
        fresh = {item.id: item for item in each(items)}  # the last of an id
        vectors = self._vectors_of(list(fresh.values()))
        for item, vector in zip(fresh.values(), vectors, strict=True):
            if item.id in self:
                self.remove(item.id)
            self._table.append(replace(item, vector=None), vector)
            if self._words is not None:
                self._words.add([item.text])

    def remove(self, id: str) -> None:  # noqa: A002
        """Forget an item; UsageError if there is none of that id."""
        row = self._table.remove(id)
        if self._words is not None:
            self._words.remove(row)
        if self._graph is not None and row < self._graphed and self._table.vector(row) is not None:
            self._graph.remove(row)
        empty = self._table.size - len(self)
        if empty > max(SPARE, len(self)):
            self._compact()

    def query(
        self,
        texts: Sequence[str] = (),
        k: int = 4,
        *,
        where: Where | Sequence[Where] = ANYWHERE,
        by: By = "vector",
        vectors: Sequence[Any] | NDArray[Any] | None = None,
    ) -> list[list[Match]]:
        """The `k` best items for each text, best first; fewer where there are no more.

        Args:
            texts: What to look for.
            k: How many items for each.
            where: Which items may be found; one for all queries, or one each.
            by: "vector": the nearest; "words": those that share words (BM25).
            vectors: What to look for, instead of texts.
        """
        given = texts if vectors is None else [""] * len(vectors)
        wheres = check_query(given, k, where, by)
        if by == "words":
            if vectors is not None:
                raise UsageError("query: given vectors by words; allowed: texts.")
            answers = self._by_words(texts, wheres, k)
        else:
            answers = self._by_vector(self._query_vectors(texts, vectors), wheres, k)
        return [self._matches(*answer) for answer in answers]

    # ------------------------------------------------------------------ saving

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything, as arrays for a checkpoint."""
        about = {
            "schema": SCHEMA,
            "embedder": None if self.embedder is None else self.embedder.name,
            "dimensions": self.dimensions,
            "metric": self.metric,
            "approximate_above": self.approximate_above,
            "items": [plain(item) for item in self],
        }
        arrays = self._table.arrays()
        arrays["document"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        return arrays

    @classmethod
    def from_state(
        cls, state: Mapping[str, NDArray[Any]], embedder: Embedder | None = None
    ) -> Memory:
        """The memory that `state` was of.

        Args:
            state: The arrays.
            embedder: The one it was made with; not needed for hashed n-grams.
        """
        about = parse_json(np.asarray(state["document"], np.uint8).tobytes())
        if not isinstance(about, dict):
            raise ValueError("expected an object as its document; got something else")
        if about.get("schema") != SCHEMA:
            raise UsageError(
                f"memory: given schema {about.get('schema')!r}; allowed: {SCHEMA}. Update fugu."
            )
        rewards, vectors = state["rewards"].tolist(), np.asarray(state["vectors"], np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != about["dimensions"]:
            raise ValueError(
                f"expected vectors of {about['dimensions']} numbers; got {list(vectors.shape)}"
            )
        memory = cls(
            _embedder(about["embedder"], embedder),
            dimensions=about["dimensions"],
            metric=about["metric"],
            approximate_above=about["approximate_above"],
        )
        for entry, reward, placed, vector in zip(
            about["items"], rewards, state["placed"], vectors, strict=True
        ):
            memory._table.append(Item(**entry, reward=reward), vector if placed else None)
        return memory

    def save(self, path: str | Path) -> Path:
        """Write everything into one file, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with fresh.open("wb") as file:
                np.savez(file, **self.state())  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | Path, embedder: Embedder | None = None) -> Memory:
        """What `save` wrote; UsageError if it is missing or broken."""
        try:
            check_file(path)
            with Path(path).open("rb") as file:
                return cls.from_state(read_npz(file), embedder)
        except FileNotFoundError:
            raise UsageError(f"memory: given {str(path)!r}; allowed: a file that exists.") from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
            raise UsageError(f"memory: {path} is no memory, or broken: {error}.") from error

    # ------------------------------------------------------------------ inside

    def _vectors_of(self, items: Sequence[Item]) -> list[Floats | None]:
        """A vector for each item, given or embedded."""
        found: list[Floats | None] = [None] * len(items)
        missing = [place for place, item in enumerate(items) if item.vector is None]
        if self.embedder is not None and missing:
            embedded = embed(self.embedder, [items[place].text for place in missing])
            for place, vector in zip(missing, embedded, strict=True):
                found[place] = vector
        for place, item in enumerate(items):
            if item.vector is not None:
                found[place] = as_vector(f"item {item.id}", item.vector, self.dimensions)
        return found

    def _query_vectors(self, texts: Sequence[str], vectors: Any) -> Floats:
        if vectors is not None:
            checked = [as_vector("query", vector, self.dimensions) for vector in vectors]
            return np.array(checked, np.float32).reshape(len(checked), self.dimensions)
        if self.embedder is None:
            raise UsageError(
                "query: given texts by vector, but the memory has no embedder; "
                "allowed: by='words', or vectors."
            )
        return embed(self.embedder, texts)

    def _by_words(self, texts: Sequence[str], wheres: Sequence[Where], k: int) -> list[Answer]:
        if self._words is None:
            self._words = Bm25()
            for row, item in enumerate(self._table.items):
                self._words.add([item.text if item is not None else ""])
                if item is None:
                    self._words.remove(row)
        answers = []
        for text, rows in zip(texts, self._allowed(wheres, placed=False), strict=True):
            scores = self._words.scores(text)[rows]
            shared = scores > 0
            rows, scores = rows[shared], scores[shared]
            best = exact.best_of(scores, k)
            answers.append((rows[best], scores[best]))
        return answers

    def _by_vector(self, queries: Floats, wheres: Sequence[Where], k: int) -> list[Answer]:
        table, cosine = self._table, self.metric == "cosine"
        allowed = self._allowed(wheres, placed=True)
        if len(self) <= self.approximate_above or not neighbours.installed():
            return exact.search(table.vectors, table.lengths, queries, allowed, k, cosine)
        graph = self._grown_graph()
        return [
            self._by_graph(graph, query, rows, k)
            for query, rows in zip(queries, allowed, strict=True)
        ]

    def _by_graph(
        self, graph: neighbours.Neighbours, query: Floats, rows: exact.Rows, k: int
    ) -> Answer:
        """About the best: neighbours in the graph, and the best of what is not in it yet."""
        table, cosine = self._table, self.metric == "cosine"
        vectors, lengths = table.vectors, table.lengths
        known = int(np.searchsorted(rows, self._graphed))
        near = rows[:known]
        if known * exact.FEW > table.size:
            count = math.ceil(max(64, 4 * k) * len(graph) / known)
            near = _among(graph.near(query, min(count, len(graph))), rows[:known])
            near = near if len(near) >= min(k, known) else rows[:known]
        ((fresh, _),) = exact.search(vectors, lengths, query[None], [rows[known:]], k, cosine)
        both = np.concatenate([near, np.sort(fresh)])
        return exact.search(vectors, lengths, query[None], [both], k, cosine)[0]

    def _grown_graph(self) -> neighbours.Neighbours:
        """The graph, with some more rows in it: all at once would keep everybody waiting."""
        if self._graph is None:
            self._graph = neighbours.Neighbours(self.dimensions, self.metric == "cosine")
            self._graphed = 0
        rows = self._table.allowed(ANYWHERE, placed=True)
        rows = rows[np.searchsorted(rows, self._graphed) :]
        some = rows[:SLICE]
        if len(some):
            self._graph.add(some, self._table.vectors[some])
        self._graphed = int(some[-1]) + 1 if len(rows) > SLICE else self._table.size
        return self._graph

    def _allowed(self, wheres: Sequence[Where], placed: bool) -> list[exact.Rows]:
        found = {where: self._table.allowed(where, placed) for where in set(wheres)}
        return [found[where] for where in wheres]

    def _matches(self, rows: exact.Rows, scores: exact.Scores) -> list[Match]:
        matches = []
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            item = self._table.items[row]
            assert item is not None
            matches.append(Match(item, score))
        return matches

    def _compact(self) -> None:
        """Number the rows anew, without empty ones."""
        old = self._table
        self._forget()
        for row, item in enumerate(old.items):
            if item is not None:
                self._table.append(item, old.vector(row))


def _embedder(name: str | None, given: Embedder | None) -> Embedder | None:
    """The embedder of a saved memory: the one that is given, or hashed n-grams."""
    start = "hashed-ngrams-"
    if given is None and name is not None and name.startswith(start):
        return HashedNgrams(int(name.removeprefix(start)))
    if (None if given is None else given.name) != name:
        raise UsageError(
            f"memory: given the embedder {'none' if given is None else given.name}; "
            f"allowed: {name or 'none'}, with which it was made."
        )
    return given


def _among(rows: exact.Rows, others: exact.Rows) -> exact.Rows:
    """Those of `rows` that are among the others; both in rising order."""
    places = np.searchsorted(others, rows)
    inside = places < len(others)
    rows, places = rows[inside], places[inside]
    shared: exact.Rows = rows[others[places] == rows]
    return shared
