"""Approximate search, compared with exact."""

from __future__ import annotations

import numpy as np
import pytest

from fugu.memory import Item, Memory, Where
from fugu.memory import memory as module
from fugu.memory.search import GROWTH

pytest.importorskip("usearch")


def clustered(rows: int, numbers: int, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    centres = chance.standard_normal((rows // 50, numbers))
    spread = 0.4 * chance.standard_normal((rows, numbers))
    return (centres[chance.integers(0, len(centres), rows)] + spread).astype(np.float32)


def filled(vectors: np.ndarray, above: int, metric: str = "cosine") -> Memory:
    memory = Memory(
        None,
        dimensions=vectors.shape[1],
        metric=metric,  # type: ignore[arg-type]
        approximate_above=above,
    )
    memory.add(
        Item(str(row), task=str(row % 4), reward=row / len(vectors), id=str(row), vector=vector)
        for row, vector in enumerate(vectors)
    )
    return memory


def settled(memory: Memory) -> Memory:
    """The memory when all of its rows are in the graph."""
    memory.query(vectors=np.ones((1, memory.dimensions)))
    assert memory._graph is not None
    while (before := memory._graph.end) < len(memory._items):
        memory.query(vectors=np.ones((1, memory.dimensions)))
        assert before < memory._graph.end <= before + GROWTH
    return memory


def recall(approximate: Memory, exact: Memory, queries: np.ndarray, **ask: object) -> float:
    pairs = [
        {match.item.id for match in found}
        for memory in (approximate, exact)
        for found in memory.query(vectors=queries, k=10, **ask)  # type: ignore[arg-type]
    ]
    found, wanted = pairs[: len(queries)], pairs[len(queries) :]
    shared = [len(a & b) for a, b in zip(found, wanted, strict=True)]
    return sum(shared) / sum(map(len, wanted))


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_recall(metric: str) -> None:
    vectors, queries = clustered(3000, 32, 1), clustered(100, 32, 2)
    approximate, exact = filled(vectors, 1000, metric), filled(vectors, 10_000, metric)
    for _ in range(2):  # while the graph grows, and when it has grown
        for where in (Where(), Where(not_task="1"), Where(task="1"), Where(min_reward=0.99)):
            assert recall(approximate, exact, queries, where=where) >= 0.95
        settled(approximate)
    assert approximate._graph is not None
    assert exact._graph is None
    (few,) = approximate.query(vectors=queries[:1], k=500, where=Where(task="1", min_reward=0.9))
    assert few == exact.query(vectors=queries[:1], k=500, where=Where(task="1", min_reward=0.9))[0]


def test_scores_are_exact_and_the_same_rows_give_the_same_answers() -> None:
    vectors, queries = clustered(2000, 16, 3), clustered(50, 16, 4)
    one, other, exact = filled(vectors, 100), filled(vectors, 100), filled(vectors, 9999)
    settled(one), settled(other)
    answers = one.query(vectors=queries, k=3)
    assert answers == other.query(vectors=queries, k=3)
    scores = {
        (place, match.item.id): match.score
        for place, found in enumerate(exact.query(vectors=queries, k=2000))
        for match in found
    }
    for place, found in enumerate(answers):
        for match in found:
            assert match.score == scores[place, match.item.id]


def test_changes_reach_the_graph() -> None:
    vectors = clustered(1000, 16, 5)
    memory = settled(filled(vectors, 100))
    queries = vectors[:20]
    assert recall(memory, filled(vectors, 9999), queries) >= 0.95
    for row in range(20):
        memory.remove(str(row))
    for found in memory.query(vectors=queries, k=10):
        assert not {match.item.id for match in found} & {str(row) for row in range(20)}
    assert memory._graph is not None
    assert len(memory._graph) == len(memory) == 980
    memory.add([Item("new", id="new", vector=queries[3])])
    assert memory.query(vectors=queries[3:4], k=1)[0][0].item.id == "new"


def test_a_loaded_memory_builds_its_graph_anew() -> None:
    """usearch crashes at some broken graphs, so none is read from a file."""
    vectors, queries = clustered(1000, 16, 6), clustered(50, 16, 7)
    memory = settled(filled(vectors, 100))
    state = memory.state()
    assert "graph" not in state
    loaded = Memory.from_state({**state, "graph": np.zeros(100, np.uint8)})  # an older file has one
    assert settled(loaded).query(vectors=queries) == memory.query(vectors=queries)
    loaded.add(Item("new", id="new", vector=queries[0]))
    assert loaded.query(vectors=queries[:1], k=1)[0][0].item.id == "new"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = clustered(500, 8, 8), clustered(50, 8, 9)
    monkeypatch.setattr(module, "graphs_installed", lambda: False)
    memory = filled(vectors, 100)
    assert memory.query(vectors=queries) == filled(vectors, 9999).query(vectors=queries)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_recall_above_a_hundred_thousand_rows() -> None:
    vectors, queries = clustered(101_000, 16, 10), clustered(200, 16, 11)
    approximate, exact = settled(filled(vectors, 100_000)), filled(vectors, 200_000)
    assert recall(approximate, exact, queries) >= 0.95
    assert approximate._graph is not None
