"""Approximate search for memories of more rows than exact search has time for, by `usearch`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

from fugu.core.errors import MissingExtraError
from fugu.memory.exact import Rows
from fugu.memory.items import Floats

EXPANSION = 256  # how far a search looks; 64, the package's own, finds too little of 100,000 rows


def installed() -> bool:
    """Whether `usearch` is there."""
    return importlib.util.find_spec("usearch") is not None


class Neighbours:
    """A graph of neighbours (HNSW), of one thread, so that the same rows make the same graph.

    Args:
        dimensions: Numbers in a vector.
        cosine: Whether angles count; dot products otherwise.
    """

    def __init__(self, dimensions: int, cosine: bool) -> None:
        if not installed():
            raise MissingExtraError("usearch", "memory")
        usearch: Any = importlib.import_module("usearch.index")
        metric = "cos" if cosine else "ip"
        self._index = usearch.Index(ndim=dimensions, metric=metric, dtype="f32")
        self._index.expansion_search = EXPANSION

    def __len__(self) -> int:
        return len(self._index)

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add vectors under the numbers of their rows."""
        self._index.add(rows.astype(np.uint64), vectors, threads=1)

    def remove(self, row: int) -> None:
        """Forget a row."""
        self._index.remove(int(row))

    def near(self, query: Floats, count: int) -> Rows:
        """About the nearest `count` rows, in rising order."""
        found = self._index.search(query, count, threads=1)
        return np.sort(np.asarray(found.keys).astype(np.int64))
