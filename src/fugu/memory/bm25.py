"""BM25: texts ranked by the words they share with a query, exact after every change."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError

_WORDS = re.compile(r"[^\W\d_]+|\d+")


def words(text: str) -> list[str]:
    """The words and numbers of a text in lower case; names are taken apart.

    >>> words("def sum_of_2(x):")
    ['def', 'sum', 'of', '2', 'x']
    """
    return _WORDS.findall(text.lower())


class Bm25:
    """An index of texts that grows and shrinks, with the scores of one built anew (Lucene's BM25).

    Texts are numbered from 0 in the order in which they were added; numbers are not used again.

    Args:
        k1: How soon repetition of a word counts no more.
        b: How far long texts are marked down, 0 to 1.
        tokenize: A text's words.
    """

    def __init__(
        self,
        k1: float = 1.5,
        b: float = 0.75,
        tokenize: Callable[[str], Sequence[str]] = words,
    ) -> None:
        if not (k1 >= 0 and 0 <= b <= 1):
            raise UsageError(f"bm25: given k1={k1}, b={b}; allowed: k1 from 0, b from 0 to 1.")
        self.k1, self.b = k1, b
        self._tokenize = tokenize
        self._lengths = array("q")
        self._alive = array("b")
        self._postings: dict[str, tuple[array[int], array[int]]] = {}  # rows, counts
        self._count = 0  # of those alive
        self._total = 0  # of their words

    def __len__(self) -> int:
        return self._count

    def add(self, texts: Iterable[str]) -> None:
        """Add texts behind the others."""
        for text in texts:
            row, found = len(self._lengths), self._tokenize(text)
            for word, count in Counter(found).items():
                rows, counts = self._postings.setdefault(word, (array("q"), array("q")))
                rows.append(row)
                counts.append(count)
            self._lengths.append(len(found))
            self._alive.append(1)
            self._count += 1
            self._total += len(found)

    def remove(self, row: int) -> None:
        """Forget the text of that number; no score is as if it had been there."""
        if not (0 <= row < len(self._alive) and self._alive[row]):
            raise UsageError(f"bm25: given row {row}; allowed: one that was added and is there.")
        self._alive[row] = 0
        self._count -= 1
        self._total -= self._lengths[row]

    def scores(self, query: str) -> NDArray[np.float64]:
        """A score for every number; 0 for texts that share no word, and for removed ones."""
        scores = np.zeros(len(self._lengths))
        if not self._count:
            return scores
        lengths = np.array(self._lengths)
        alive = np.array(self._alive, np.bool_)
        mean = self._total / self._count
        for word, times in Counter(self._tokenize(query)).items():
            if word not in self._postings:
                continue
            rows, counts = (np.array(part) for part in self._postings[word])
            kept = alive[rows]
            rows, counts = rows[kept], counts[kept]
            rarity = math.log(1 + (self._count - len(rows) + 0.5) / (len(rows) + 0.5))
            damping = self.k1 * (1 - self.b + self.b * lengths[rows] / mean)
            scores[rows] += times * rarity * (counts / (counts + damping))
        return scores
