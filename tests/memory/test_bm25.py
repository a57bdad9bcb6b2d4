"""BM25 against other people's code, against a slow one, and after every change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import UsageError
from fugu.memory.bm25 import Bm25, words

VOCABULARY = ["list", "sum", "map", "sort", "reverse", "first", "last", "double", "even", "odd"]
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join)


def slow(texts: list[str], query: str, k1: float = 1.5, b: float = 0.75) -> list[float]:
    """The formula as it is printed."""
    split = [words(text) for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for text in split:
        score = 0.0
        for word in words(query):
            having = sum(word in other for other in split)
            rarity = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
            count = text.count(word)
            if count:
                damping = k1 * (1 - b + b * len(text) / mean)
                score += rarity * count / (count + damping)
        scores.append(score)
    return scores


def made(texts: list[str], **settings: float) -> Bm25:
    index = Bm25(**settings)
    index.add(texts)
    return index


@given(st.lists(TEXTS, min_size=1, max_size=12), TEXTS)
def test_the_formula(texts: list[str], query: str) -> None:
    scores = made(texts, k1=0.9, b=0.4).scores(query)
    np.testing.assert_allclose(scores, slow(texts, query, 0.9, 0.4), rtol=1e-12)


def test_bm25s_agrees() -> None:
    bm25s = pytest.importorskip("bm25s")
    chance = np.random.default_rng(0)
    texts = [" ".join(chance.choice(VOCABULARY, chance.integers(1, 30))) for _ in range(200)]
    theirs = bm25s.BM25(method="lucene", k1=1.5, b=0.75, dtype="float64")
    theirs.index([words(text) for text in texts], show_progress=False)
    ours = made(texts)
    for _ in range(20):
        query = " ".join(chance.choice(VOCABULARY, 4, replace=False))
        np.testing.assert_allclose(
            ours.scores(query), theirs.get_scores(words(query)), rtol=1e-9, atol=1e-12
        )


@given(st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=15), TEXTS)
def test_after_changes_it_is_as_if_built_anew(steps: list[tuple[str, bool]], query: str) -> None:
    index = Bm25()
    for text, _ in steps:
        index.add([text])
        index.scores(query)  # asking in between changes nothing
    for row, (_, kept) in enumerate(steps):
        if not kept:
            index.remove(row)
    left = [text for text, kept in steps if kept]
    scores = index.scores(query)
    assert len(index) == len(left)
    assert scores[[not kept for _, kept in steps]].tolist() == [0.0] * (len(steps) - len(left))
    assert scores[[kept for _, kept in steps]].tolist() == made(left).scores(query).tolist()


def test_words() -> None:
    assert words("def Foo_bar2(x): return 'Straße'") == [
        *("def", "foo", "bar", "2", "x", "return", "straße")
    ]


def test_what_is_refused() -> None:
    for settings in ({"k1": -1.0}, {"b": 1.5}, {"k1": math.nan}):
        with pytest.raises(UsageError, match="allowed: k1 from 0"):
            Bm25(**settings)
    index = made(["a"])
    index.remove(0)
    for row in (0, 1, -1):
        with pytest.raises(UsageError, match=f"given row {row}"):
            index.remove(row)
    assert index.scores("a").tolist() == [0.0]
    assert Bm25().scores("a").tolist() == []
