"""Memory: items in this process, found again by vectors or by words."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.files import check_file, parse_json
from fugu.core.npz import read_npz
from fugu.core.writing import write_whole
from fugu.memory.embedders import Embedder, HashedNgrams, embed
from fugu.memory.items import (
    ANYWHERE,
    By,
    Floats,
    Item,
    Match,
    Where,
    as_items,
    as_vector,
    check_query,
)
from fugu.memory.search import (
    Bm25,
    Graph,
    Mask,
    Rows,
    Scores,
    best_of,
    graphs_installed,
    lengths_of,
    search,
)

SCHEMA = 1
MAX_DIMENSIONS = 65_536
SPARE = 1024  # removed rows that are not worth a compaction
COLUMNS = np.dtype(
    [
        ("task", np.int64),
        ("reward", np.float64),
        ("present", np.bool_),  # not removed
        ("placed", np.bool_),  # has a vector
        ("length", np.float64),
    ]
)
Metric = Literal["cosine", "dot"]
Answer = tuple[Rows, Scores]


class Memory:
    """Items that are found again by vectors or by words; exact up to `approximate_above` items.

    Of equal scores the item that was added first comes first. For one thread at a time.

    Args:
        embedder: The function that makes vectors of texts; None: vectors are given with the items.
        dimensions: The size of a vector if there is no embedder; 0: no vectors.
        metric: The score of two vectors: "cosine" or "dot".
        approximate_above: The number of items above which `usearch`, if it is installed, looks for
            vectors.

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
        approximate_above: int = 100_000,
    ) -> None:
        if metric not in ("cosine", "dot"):
            raise UsageError(f"metric: expected one of 'cosine', 'dot'; got {metric!r}.")
        if not 0 <= dimensions <= MAX_DIMENSIONS:
            raise UsageError(
                f"dimensions: expected at least 0 and at most {MAX_DIMENSIONS}; got {dimensions}."
            )
        self.embedder = HashedNgrams() if embedder == "default" else embedder
        self.dimensions = dimensions if self.embedder is None else self.embedder.dimensions
        if self.embedder is not None and dimensions not in (0, self.dimensions):
            raise UsageError(
                f"dimensions: expected {self.dimensions}, as {self.embedder.name} has; "
                f"got {dimensions}. Leave it out."
            )
        self.metric = metric
        self.approximate_above = approximate_above
        self._items: list[Item] = []  # by row, with removed ones until the next compaction
        self._row_of: dict[str, int] = {}  # in the order of rows
        self._tasks: dict[str, int] = {}  # numbers of tasks
        self._columns = np.zeros(0, COLUMNS)  # [at least rows]
        self._vectors = np.zeros((0, self.dimensions), np.float32)  # [at least rows, dimensions]
        self._words: Bm25 | None = None  # made by the first query by words
        self._graph: Graph | None = None  # made by the first approximate query

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, id: str) -> bool:  # noqa: A002
        return id in self._row_of

    def __iter__(self) -> Iterator[Item]:
        return (self._items[row] for row in self._row_of.values())

    def get(self, id: str) -> Item:  # noqa: A002
        """Return the item with this id, and its vector, which must not be changed."""
        row = self._row(id)
        vector = self._vectors[row] if self._columns["placed"][row] else None
        return replace(self._items[row], vector=vector)

    def add(self, items: Item | Iterable[Item]) -> None:
        """Store items, all or none; an item whose id is known replaces the old one."""
        fresh = {item.id: item for item in as_items(items)}  # the last one of each id
        vectors, placed = self._embed_items(list(fresh.values()))
        for name in fresh:
            if name in self:
                self.remove(name)
        self._append([replace(item, vector=None) for item in fresh.values()], vectors, placed)

    def remove(self, id: str) -> None:  # noqa: A002
        """Remove the item with this id; UsageError if there is none."""
        row = self._row(id)
        del self._row_of[id]
        self._columns["present"][row] = False
        if self._graph is not None:
            self._graph.remove(row)
        if len(self._items) - len(self) > max(SPARE, len(self)):
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
        """Return the `k` best items for each text, best first; fewer if there are fewer.

        Args:
            texts: The texts to look for.
            k: The largest number of items for each text.
            where: The filter on items: one for all queries, or one for each.
            by: "vector" finds the nearest vectors, "words" the texts that share words (BM25).
            vectors: The vectors to look for, instead of texts.
        """
        wheres = check_query(texts if vectors is None else vectors, k, where, by)
        if by == "words":
            if vectors is not None:
                raise UsageError("query: expected texts for by='words'; got vectors.")
            answers = self._by_words(texts, wheres, k)
        else:
            answers = self._by_vector(self._embed_queries(texts, vectors), wheres, k)
        return [
            [
                Match(self._items[row], score)
                for row, score in zip(rows, scores.tolist(), strict=True)
            ]
            for rows, scores in answers
        ]

    # ------------------------------------------------------------------ saving

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays, for a checkpoint."""
        about = {
            "schema": SCHEMA,
            "embedder": None if self.embedder is None else self.embedder.name,
            "dimensions": self.dimensions,
            "metric": self.metric,
            "approximate_above": self.approximate_above,
            "items": [
                {"id": item.id, "text": item.text, "task": item.task, "metadata": {**item.metadata}}
                for item in self
            ],
        }
        rows = np.flatnonzero(self._columns["present"])
        return {
            "rewards": self._columns["reward"][rows],
            "placed": self._columns["placed"][rows],
            "vectors": self._vectors[rows],
            "document": np.frombuffer(json.dumps(about).encode(), np.uint8),
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, NDArray[Any]], embedder: Embedder | None = None
    ) -> Memory:
        """Return the memory that `state` describes.

        Args:
            state: The arrays that `state()` returned.
            embedder: The embedder that the memory had; None: none, or hashed n-grams.
        """
        about = parse_json(np.asarray(state["document"], np.uint8).tobytes())
        if not isinstance(about, dict):
            raise ValueError(f"expected an object as its document; got a {type(about).__name__}")
        if about.get("schema") != SCHEMA:
            raise UsageError(
                f"memory: expected schema {SCHEMA}; got {about.get('schema')!r}. Update fugu."
            )
        rewards, placed = state["rewards"].tolist(), np.asarray(state["placed"], np.bool_)
        items = [Item(**i, reward=r) for i, r in zip(about["items"], rewards, strict=True)]
        if len({item.id for item in items}) < len(items):
            raise ValueError("expected every id once; got some twice")
        vectors = np.asarray(state["vectors"], np.float32)
        if vectors.shape != (*placed.shape, about["dimensions"]) or len(placed) != len(items):
            raise ValueError(
                f"expected vectors of shape [{len(items)}, {about['dimensions']}]; "
                f"got {list(vectors.shape)}"
            )
        memory = cls(
            _same_embedder(about["embedder"], embedder),
            dimensions=about["dimensions"],
            metric=about["metric"],
            approximate_above=about["approximate_above"],
        )
        memory._append(items, vectors, placed)
        return memory

    def save(self, path: str | Path) -> Path:
        """Write everything into one file, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez(content, **self.state())  # type: ignore[arg-type]
        write_whole(path, content.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path, embedder: Embedder | None = None) -> Memory:
        """Return the memory that `save` wrote; UsageError if the file is missing or broken."""
        try:
            check_file(path)
            with Path(path).open("rb") as file:
                return cls.from_state(read_npz(file), embedder)
        except FileNotFoundError:
            raise UsageError(f"memory: expected a file that exists; got {str(path)!r}.") from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
            raise UsageError(f"memory: {path} is not a saved memory or broken: {error}.") from error

    # ------------------------------------------------------------------ rows

    def _row(self, id: str) -> int:  # noqa: A002
        if id not in self._row_of:
            raise UsageError(f"memory: expected the id of a stored item; got {id!r}.")
        return self._row_of[id]

    def _append(self, items: list[Item], vectors: Floats, placed: Mask) -> None:
        first, end = len(self._items), len(self._items) + len(items)
        more = max(64, end) if end > len(self._columns) else 0
        if more:
            self._columns = np.concatenate([self._columns, np.zeros(more, COLUMNS)])
            room = np.zeros((more, self.dimensions), np.float32)
            self._vectors = np.concatenate([self._vectors, room])
        rows = self._columns[first:end]
        rows["task"] = [self._tasks.setdefault(item.task, len(self._tasks)) for item in items]
        rows["reward"] = [item.reward for item in items]
        rows["present"], rows["placed"] = True, placed
        rows["length"], self._vectors[first:end] = lengths_of(vectors), vectors
        self._row_of |= {item.id: row for row, item in enumerate(items, first)}
        self._items += items
        if self._words is not None:
            for item in items:
                self._words.add(item.text)

    def _compact(self) -> None:
        """Drop the rows of removed items."""
        rows = np.flatnonzero(self._columns["present"])
        self._items = [self._items[row] for row in rows]
        self._row_of = {item.id: row for row, item in enumerate(self._items)}
        self._columns, self._vectors = self._columns[rows], self._vectors[rows]
        self._words = self._graph = None

    # ------------------------------------------------------------------ vectors and words

    def _embed_items(self, items: Sequence[Item]) -> tuple[Floats, Mask]:
        """Return the vectors [items, dimensions], given or embedded, and which items have one."""
        vectors = np.zeros((len(items), self.dimensions), np.float32)
        given = np.array([item.vector is not None for item in items], np.bool_)
        if self.embedder is not None and not given.all():
            texts = [item.text for item in items if item.vector is None]
            vectors[~given] = embed(self.embedder, texts)
        for vector, item in zip(vectors, items, strict=True):
            if item.vector is not None:
                vector[:] = as_vector(f"item {item.id}", item.vector, self.dimensions)
        return vectors, given | (self.embedder is not None)

    def _embed_queries(self, texts: Sequence[str], vectors: Any) -> Floats:
        if vectors is not None:
            checked = [as_vector("query", vector, self.dimensions) for vector in vectors]
            return np.array(checked, np.float32).reshape(len(checked), self.dimensions)
        if self.embedder is None:
            raise UsageError(
                "query: expected vectors, or by='words', since the memory has no embedder; "
                "got texts."
            )
        return embed(self.embedder, texts)

    def _by_vector(self, queries: Floats, wheres: Sequence[Where], k: int) -> list[Answer]:
        size, cosine = len(self._items), self.metric == "cosine"
        vectors, lengths = self._vectors[:size], self._columns["length"][:size]
        allowed = [self._mask(where, placed=True) for where in wheres]
        if len(self) > self.approximate_above and graphs_installed():
            if self._graph is None:
                self._graph = Graph(self.dimensions, cosine)
            self._graph.grow(vectors, self._mask(ANYWHERE, placed=True))
            allowed = [
                self._graph.narrow(query, mask, k)
                for query, mask in zip(queries, allowed, strict=True)
            ]
        return search(vectors, lengths, queries, allowed, k, cosine)

    def _by_words(self, texts: Sequence[str], wheres: Sequence[Where], k: int) -> list[Answer]:
        if self._words is None:
            self._words = Bm25()
            for item in self._items:
                self._words.add(item.text)
        answers = []
        present = self._mask(ANYWHERE)
        for text, where in zip(texts, wheres, strict=True):
            scores = self._words.scores(text, present)
            rows = np.flatnonzero(self._mask(where) & (scores > 0))
            best = rows[best_of(scores[rows], k)]
            answers.append((best, scores[best]))
        return answers

    def _mask(self, where: Where, *, placed: bool = False) -> Mask:
        """Return which rows a query may find [rows]; with `placed`, only those with a vector."""
        rows = self._columns[: len(self._items)]
        mask: Mask = rows["present"] & rows["placed"] if placed else rows["present"].copy()
        if where.task is not None:
            mask &= rows["task"] == self._tasks.get(where.task, -1)
        if where.not_task is not None:
            mask &= rows["task"] != self._tasks.get(where.not_task, -1)
        if where.min_reward is not None:
            mask &= rows["reward"] >= where.min_reward
        if where.max_reward is not None:
            mask &= rows["reward"] <= where.max_reward
        return mask


def _same_embedder(name: str | None, given: Embedder | None) -> Embedder | None:
    """Return the embedder of a saved memory: the given one, or hashed n-grams."""
    prefix = "hashed-ngrams-"
    if given is None and name is not None and name.startswith(prefix):
        return HashedNgrams(int(name.removeprefix(prefix)))
    given_name = None if given is None else given.name
    if given_name != name:
        raise UsageError(
            f"memory: expected the embedder that it was made with, {name or 'none'}; "
            f"got {given_name or 'none'}."
        )
    return given
