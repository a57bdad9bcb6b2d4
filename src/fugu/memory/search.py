"""The ranking of rows: exactly by vectors, approximately by a graph, and by words.

Exact search gives the same answer in every batch and with every BLAS. Products in float32 only
leave out rows that cannot be among the best, by a bound on their error; float64 ranks the others,
row by row. Of equal scores the earlier row wins.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.memory.items import Floats

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
Scores = NDArray[np.float64]
BLOCK = 1 << 24  # products in memory at a time
FEW = 8  # a query that may find fewer than one row in 8 is ranked without float32 products
GROWTH = 256  # rows that one call adds to a graph
EXPANSION = 256  # candidates of a graph search; usearch's default of 64 misses many of 100,000 rows
K1, B = 1.5, 0.75  # of BM25: saturation of repeated words, penalty of long texts
_WORDS = re.compile(r"[^\W\d_]+|\d+")


def lengths_of(vectors: Floats) -> Scores:
    """Return the length of each vector [rows]."""
    wide = vectors.astype(np.float64)
    lengths: Scores = np.sqrt((wide * wide).sum(axis=1))
    return lengths


def search(
    vectors: Floats,
    lengths: Scores,
    queries: Floats,
    allowed: Sequence[Mask],
    k: int,
    cosine: bool,
) -> list[tuple[Rows, Scores]]:
    """Return the best `k` rows for each query, best first, and their scores.

    Args:
        vectors: The vectors [rows, dimensions].
        lengths: Their lengths [rows].
        queries: The vectors to look for [queries, dimensions].
        allowed: For each query, the rows that it may find [rows].
        k: The largest number of rows for a query.
        cosine: Whether scores are cosines; otherwise they are dot products.
    """
    answers: list[tuple[Rows, Scores]] = []
    many = np.array([np.count_nonzero(mask) * FEW > len(vectors) for mask in allowed], np.bool_)
    size = max(1, BLOCK // max(1, len(vectors)))
    for first in range(0, len(queries), size):
        block = slice(first, first + size)
        products = iter(queries[block][many[block]] @ vectors.T)
        for query, mask, bounded in zip(queries[block], allowed[block], many[block], strict=True):
            rows = np.flatnonzero(mask)
            if bounded:
                possible = _may_be_best(next(products)[rows], lengths[rows], query, k, cosine)
                rows = rows[possible]
            answers.append(_rank(vectors, lengths, query, rows, k, cosine))
    return answers


def best_of(scores: Scores, k: int) -> Rows:
    """Return the positions of the `k` highest scores, highest first, earlier of equals first."""
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        positions = np.flatnonzero(scores >= least)
    else:
        positions = np.arange(len(scores))
    return positions[np.argsort(-scores[positions], kind="stable")[:k]]


def _rank(
    vectors: Floats, lengths: Scores, query: Floats, rows: Rows, k: int, cosine: bool
) -> tuple[Rows, Scores]:
    """Return the best `k` of these rows and their scores in float64."""
    wide = query.astype(np.float64)
    scores: Scores = (vectors[rows].astype(np.float64) * wide).sum(axis=1)
    if cosine:
        scale = lengths[rows] * np.sqrt((wide * wide).sum())
        scores = np.divide(scores, scale, out=np.zeros_like(scores), where=scale > 0)
    best = best_of(scores, k)
    return rows[best], scores[best]


def _may_be_best(products: Floats, lengths: Scores, query: Floats, k: int, cosine: bool) -> Mask:
    """Return which rows may be among the best `k`, given products that float32 has rounded."""
    if k >= len(products):
        return np.ones(len(products), np.bool_)
    scores = products.astype(np.float64)
    length = float(np.linalg.norm(query.astype(np.float64)))
    # What is rounded off, and what is lost where products are too small for float32.
    errors = (len(query) + 8) * (2.0**-23 * length * lengths + 2.0**-125)
    if cosine:
        scale = np.where(lengths > 0, lengths, 1.0)
        scores, errors = scores / scale, errors / scale
    lowest = scores - errors
    least = np.partition(lowest, len(lowest) - k)[len(lowest) - k]
    possible: Mask = scores + errors >= least
    return possible


def graphs_installed() -> bool:
    """Return whether `usearch` is installed, which `Graph` needs."""
    return importlib.util.find_spec("usearch") is not None


class Graph:
    """A graph of neighbors (HNSW, by `usearch`) that leaves few rows to rank.

    It uses one thread, so that the same rows make the same graph. Rows before `end` are in it.
    """

    def __init__(self, dimensions: int, cosine: bool) -> None:
        usearch: Any = importlib.import_module("usearch.index")
        metric = "cos" if cosine else "ip"
        self._index = usearch.Index(ndim=dimensions, metric=metric, dtype="f32")
        self._index.expansion_search = EXPANSION
        self.end = 0

    def __len__(self) -> int:
        return len(self._index)

    def grow(self, vectors: Floats, present: Mask) -> None:
        """Add some more of the present rows: all at once would take too long for one query."""
        rows = self.end + np.flatnonzero(present[self.end :])
        some = rows[:GROWTH]
        if len(some):
            self._index.add(some.astype(np.uint64), vectors[some], threads=1)
        self.end = int(some[-1]) + 1 if len(rows) > GROWTH else len(present)

    def remove(self, row: int) -> None:
        """Remove a row if it is in the graph."""
        if row in self._index:
            self._index.remove(row)

    def narrow(self, query: Floats, allowed: Mask, k: int) -> Mask:
        """Return the allowed rows that are near, and those that are not in the graph yet."""
        known = int(np.count_nonzero(allowed[: self.end]))
        if known * FEW <= len(allowed):
            return allowed
        count = min(math.ceil(max(64, 4 * k) * len(self._index) / known), len(self._index))
        near = np.asarray(self._index.search(query, count, threads=1).keys).astype(np.int64)
        near = near[allowed[near]]
        if len(near) < min(k, known):
            return allowed
        narrowed = allowed.copy()
        narrowed[: self.end] = False
        narrowed[near] = True
        return narrowed


def split_words(text: str) -> list[str]:
    """Return the words and numbers of a text in lower case; identifiers are split.

    >>> split_words("def sum_of_2(x):")
    ['def', 'sum', 'of', '2', 'x']
    """
    return _WORDS.findall(text.lower())


class Bm25:
    """An index that scores texts by the words that they share with a query (Lucene's BM25)."""

    def __init__(self) -> None:
        self._lengths = array("q")
        self._postings: dict[str, tuple[array[int], array[int]]] = {}  # rows, counts

    def add(self, text: str) -> None:
        """Add a text as the next row."""
        row, found = len(self._lengths), split_words(text)
        for word, count in Counter(found).items():
            rows, counts = self._postings.setdefault(word, (array("q"), array("q")))
            rows.append(row)
            counts.append(count)
        self._lengths.append(len(found))

    def scores(self, query: str, present: Mask) -> Scores:
        """Return the scores [rows] that an index of the present rows alone would give.

        Rows that are not present, and those that share no word with the query, have 0.
        """
        lengths = np.array(self._lengths)
        scores = np.zeros(len(lengths))
        total = np.count_nonzero(present)
        mean = lengths[present].sum() / max(total, 1)
        for word, times in Counter(split_words(query)).items():
            if word not in self._postings:
                continue
            rows, counts = (np.array(column) for column in self._postings[word])
            kept = present[rows]
            rows, counts = rows[kept], counts[kept]
            rarity = math.log(1 + (total - len(rows) + 0.5) / (len(rows) + 0.5))
            damping = K1 * (1 - B + B * lengths[rows] / mean)
            scores[rows] += times * rarity * (counts / (counts + damping))
        return scores
