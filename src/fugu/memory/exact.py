"""Exact search among vectors, the same in every batch and on every BLAS.

Products in float32 leave out only rows that cannot be among the best, by a bound on their error;
the rest is scored in float64, row by row. Of equal scores the earlier row wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.memory.items import Floats

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]
BLOCK = 1 << 24  # products that are held at once
FEW = 8  # rows that are less than one in so many are scored at once, without products of all


def lengths_of(vectors: Floats) -> Scores:
    """The length of each row."""
    wide = vectors.astype(np.float64)
    lengths: Scores = np.sqrt((wide * wide).sum(axis=1))
    return lengths


def search(
    vectors: Floats,  # [rows, numbers]
    lengths: Scores,  # [rows]
    queries: Floats,  # [queries, numbers]
    allowed: Sequence[Rows],
    k: int,
    cosine: bool,
) -> list[tuple[Rows, Scores]]:
    """The best `k` rows of those that each query is allowed, best first, and their scores."""
    answers: list[tuple[Rows, Scores]] = []
    many = np.array([len(rows) * FEW > len(vectors) for rows in allowed], np.bool_)
    size = max(1, BLOCK // max(1, len(vectors)))
    shortest = float(lengths.min(initial=np.inf, where=lengths > 0))
    for first in range(0, len(queries), size):
        block = slice(first, first + size)
        wanted = queries[block][many[block]]
        products = iter(wanted @ vectors.T)  # [queries, rows]
        for query, rows, in_block in zip(queries[block], allowed[block], many[block], strict=True):
            if in_block:
                all_of_them = len(rows) == len(vectors)
                product = next(products)
                given = (product, lengths) if all_of_them else (product[rows], lengths[rows])
                rows = rows[_contenders(*given, shortest, query, k, cosine)]
            answers.append(rank(vectors, lengths, query, rows, k, cosine))
    return answers


def rank(
    vectors: Floats, lengths: Scores, query: Floats, rows: Rows, k: int, cosine: bool
) -> tuple[Rows, Scores]:
    """The best `k` of these rows, which are in rising order, and their scores in float64."""
    wide = query.astype(np.float64)
    scores: Scores = (vectors[rows].astype(np.float64) * wide).sum(axis=1)
    if cosine:
        scale = lengths[rows] * np.sqrt((wide * wide).sum())
        scores = np.divide(scores, scale, out=np.zeros_like(scores), where=scale > 0)
    best = best_of(scores, k)
    return rows[best], scores[best]


def best_of(scores: Scores, k: int) -> Rows:
    """Where the `k` highest scores are, highest first, the earlier of equals first."""
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= least)
    else:
        places = np.arange(len(scores))
    order = np.argsort(-scores[places], kind="stable")[:k]
    return places[order].astype(np.int64)


def _contenders(
    products: Floats, lengths: Scores, shortest: float, query: Floats, k: int, cosine: bool
) -> NDArray[np.bool_]:
    """Which rows may be among the best `k`, given products in float32 and what they may be off."""
    if k >= len(products):
        return np.ones(len(products), np.bool_)
    wide = query.astype(np.float64)
    length = np.sqrt((wide * wide).sum())
    terms = len(query) + 8
    scores = products.astype(np.float64)
    error: Any  # rounding, and products that are too small for float32
    if cosine:
        scores /= np.where(lengths > 0, lengths, 1.0)
        error = terms * (2.0**-23 * length + 2.0**-125 / shortest)
    else:
        error = terms * (2.0**-23 * length * lengths + 2.0**-125)
    lowest = scores - error
    least = np.partition(lowest, len(lowest) - k)[len(lowest) - k]
    contenders: NDArray[np.bool_] = scores + error >= least
    return contenders
