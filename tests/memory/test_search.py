"""Exact search is exact: the order and the scores of a slow search in float64, bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fugu.memory import search as module
from fugu.memory.search import lengths_of, search

NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5]),  # many equal scores
    st.floats(-(2.0**56), 2.0**56, width=32),
    st.floats(-(2.0**-100), 2.0**-100, width=32),
)


def slow(
    vectors: np.ndarray, query: np.ndarray, rows: np.ndarray, k: int, cosine: bool
) -> tuple[list[int], list[float]]:
    """Each row by itself, in float64; the best by sorting them all."""

    def score(row: int) -> float:
        one, other = vectors[row].astype(np.float64), query.astype(np.float64)
        product = float((one * other).sum())
        if not cosine:
            return product
        scale = np.sqrt((one * one).sum()) * np.sqrt((other * other).sum())
        return float(product / scale) if scale > 0 else 0.0

    scores = {int(row): score(int(row)) for row in rows}
    best = sorted(scores, key=lambda row: (-scores[row], row))[:k]
    return best, [scores[row] for row in best]


def check(
    vectors: np.ndarray, queries: np.ndarray, allowed: list[np.ndarray], k: int, cosine: bool
) -> None:
    masks = [np.isin(np.arange(len(vectors)), rows) for rows in allowed]
    found = search(vectors, lengths_of(vectors), queries, masks, k, cosine)
    assert len(found) == len(queries)
    for query, rows, (places, scores) in zip(queries, allowed, found, strict=True):
        assert (places.tolist(), scores.tolist()) == slow(vectors, query, rows, k, cosine)


@given(st.data())
def test_any_vectors(data: st.DataObject) -> None:
    rows, numbers = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    count = data.draw(st.integers(1, 5))
    vectors = data.draw(arrays.arrays(np.float32, (rows, numbers), elements=NUMBERS))
    queries = data.draw(arrays.arrays(np.float32, (count, numbers), elements=NUMBERS))
    allowed = [
        np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), np.int64)
        for _ in range(count)
    ]
    check(vectors, queries, allowed, data.draw(st.integers(1, rows + 2)), data.draw(st.booleans()))


def close_calls(rows: int = 3000, numbers: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Vectors so near each other that float32 cannot tell which is nearest."""
    chance = np.random.default_rng(1)
    base = chance.standard_normal(numbers)
    vectors = base + 1e-7 * chance.standard_normal((rows, numbers))
    return vectors.astype(np.float32), chance.standard_normal((7, numbers)).astype(np.float32)


def test_close_calls() -> None:
    vectors, queries = close_calls()
    everything = np.arange(len(vectors))
    for cosine in (True, False):
        check(vectors, queries, [everything] * len(queries), 10, cosine)


def test_products_in_float32_alone_would_not_do() -> None:
    """A negative control."""
    vectors, queries = close_calls()
    everything = np.arange(len(vectors))
    for query in queries:
        naive = np.argsort(-(vectors @ query), kind="stable")[:10].tolist()
        if naive != slow(vectors, query, everything, 10, cosine=False)[0]:
            return
    raise AssertionError("float32 was exact here: this shows nothing")


def test_a_query_is_answered_alike_in_every_batch() -> None:
    chance = np.random.default_rng(2)
    vectors = chance.standard_normal((2000, 96)).astype(np.float32)
    queries = chance.standard_normal((33, 96)).astype(np.float32)
    lengths, everything = lengths_of(vectors), np.ones(len(vectors), np.bool_)
    together = search(vectors, lengths, queries, [everything] * 33, 5, True)
    for query, (rows, scores) in zip(queries, together, strict=True):
        ((rows_alone, scores_alone),) = search(vectors, lengths, query[None], [everything], 5, True)
        assert rows.tolist() == rows_alone.tolist()
        assert scores.tolist() == scores_alone.tolist()


def test_blocks_of_queries_are_put_together(monkeypatch: object) -> None:
    chance = np.random.default_rng(3)
    vectors = chance.standard_normal((100, 8)).astype(np.float32)
    queries = chance.standard_normal((11, 8)).astype(np.float32)
    few, many = np.arange(0, 100, 20), np.arange(100)
    allowed = [many if place % 3 else few for place in range(11)]
    monkeypatch.setattr(module, "BLOCK", 300)  # type: ignore[attr-defined]
    check(vectors, queries, allowed, 4, True)
