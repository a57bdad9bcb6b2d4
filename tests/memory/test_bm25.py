"""BM25 against other people's code, against a slow one, and after every change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.memory.search import K1, B, Bm25, split_words

VOCABULARY = ["list", "sum", "map", "sort", "reverse", "first", "last", "double", "even", "odd"]
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join)


def slow(texts: list[str], query: str) -> list[float]:
    """The formula as it is printed."""
    split = [split_words(text) for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for text in split:
        score = 0.0
        for word in split_words(query):
            having = sum(word in other for other in split)
            rarity = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
            count = text.count(word)
            if count:
                damping = K1 * (1 - B + B * len(text) / mean)
                score += rarity * count / (count + damping)
        scores.append(score)
    return scores


def scores_of(texts: list[str], query: str) -> np.ndarray:
    index = Bm25()
    for text in texts:
        index.add(text)
    return index.scores(query, np.ones(len(texts), np.bool_))


@given(st.lists(TEXTS, min_size=1, max_size=12), TEXTS)
def test_the_formula(texts: list[str], query: str) -> None:
    np.testing.assert_allclose(scores_of(texts, query), slow(texts, query), rtol=1e-12)


def test_bm25s_agrees() -> None:
    bm25s = pytest.importorskip("bm25s")
    chance = np.random.default_rng(0)
    texts = [" ".join(chance.choice(VOCABULARY, chance.integers(1, 30))) for _ in range(200)]
    theirs = bm25s.BM25(method="lucene", k1=K1, b=B, dtype="float64")
    theirs.index([split_words(text) for text in texts], show_progress=False)
    for _ in range(20):
        query = " ".join(chance.choice(VOCABULARY, 4, replace=False))
        np.testing.assert_allclose(
            scores_of(texts, query), theirs.get_scores(split_words(query)), rtol=1e-9, atol=1e-12
        )


@given(st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=15), TEXTS)
def test_after_changes_it_is_as_if_built_anew(steps: list[tuple[str, bool]], query: str) -> None:
    index = Bm25()
    for count, (text, _) in enumerate(steps, 1):
        index.add(text)
        index.scores(query, np.ones(count, np.bool_))  # asking in between changes nothing
    kept = np.array([kept for _, kept in steps])
    left = [text for text, kept in steps if kept]
    scores = index.scores(query, kept)
    assert not scores[~kept].any()
    assert scores[kept].tolist() == scores_of(left, query).tolist()


def test_words() -> None:
    assert split_words("def Foo_bar2(x): return 'Straße'") == [
        *("def", "foo", "bar", "2", "x", "return", "straße")
    ]


def test_without_texts_there_are_no_scores() -> None:
    assert Bm25().scores("a", np.ones(0, np.bool_)).tolist() == []
    index = Bm25()
    index.add("a")
    assert index.scores("a", np.zeros(1, np.bool_)).tolist() == [0.0]
