"""Recall: one query and one addition a batch, answers of others, the same all episode long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from fugu.core.errors import UsageError
from fugu.memory import Item, Match, Memory, Recall, RecallView, TokenRuns

FILLER = 99


class Counting(Memory):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(TokenRuns())
        self.queries: list[int] = []
        self.additions: list[int] = []

    def query(self, texts: Sequence[str] = (), k: int = 4, **rest: Any) -> list[list[Match]]:
        self.queries.append(len(texts))
        return super().query(texts, k, **rest)

    def add(self, items: Item | Iterable[Item]) -> None:
        given = [items] if isinstance(items, Item) else list(items)
        self.additions.append(len(given))
        super().add(given)


def flags(*values: int) -> Any:
    return np.array(values, np.bool_)


def test_a_batch_asks_once_and_adds_once() -> None:
    memory = Counting()
    recall = Recall(FILLER, 1, 2, memory)
    view, agents = RecallView(recall), np.arange(3)
    prompts = np.array([[1, 2, 3, 0], [1, 2, 4, 0], [5, 6, 7, 0]])
    view.observe(agents, prompts, flags(0, 0, 0))
    assert memory.queries == []  # nothing is known yet
    final = np.array([[1, 2, 3, 8], [1, 2, 4, 9], [5, 6, 7, 8]])
    view.record(agents, np.array([1.0, 0.5, 1.0], np.float32), flags(1, 1, 1), final, 1.0)
    assert memory.additions == [2]
    shown = view.observe(agents, prompts, flags(1, 1, 1))
    assert memory.queries == [3]
    assert shown[1].tolist() == [8, FILLER, 1, 2, 4, 0]
    view.observe(agents, prompts, flags(0, 0, 0))  # the same episodes go on
    view.observe(agents, prompts, flags(1, 1, 1))  # others begin, but the answers are known
    assert memory.queries == [3]


def test_a_prompt_is_never_shown_its_own_answer() -> None:
    recall = Recall(FILLER, 1, 2)
    recall.add([[1, 2, 3]], [[7, 8]])
    assert recall.find([[1, 2, 3], [1, 2, 4]]).tolist() == [[FILLER, FILLER], [7, 8]]


def test_the_most_similar_come_first_and_the_last_tokens_of_them() -> None:
    recall = Recall(FILLER, 2, 3)
    recall.add([[1, 2, 3, 4], [1, 2, 9, 9], [5, 5, 5, 5]], [[1], [2, 3, 4, 5], [6]])
    assert recall.find([[1, 2, 3, 9]]).tolist() == [[1, FILLER, FILLER, 3, 4, 5]]


def test_what_is_shown_stays_until_the_episode_ends() -> None:
    recall = Recall(FILLER, 1, 1)
    recall.add([[1, 2, 3]], [[7]])
    view, agents = RecallView(recall), np.array([4])
    first = view.observe(agents, np.array([[1, 2, 4, 0]]), flags(0))
    recall.add([[1, 2, 4]], [[8]])  # nearer to the next one, and its own
    recall.add([[1, 2, 5]], [[9]])
    later = view.observe(agents, np.array([[1, 2, 4, 6]]), flags(0))
    assert (first[0, 0], later[0].tolist()) == (7, [7, 1, 2, 4, 6])
    assert view.prepend(agents, np.array([[1, 2, 4, 6]])).tolist() == later.tolist()
    other = view.observe(agents, np.array([[3, 3, 3, 0]]), flags(0))  # it began unsaid
    assert other[0, 1:].tolist() == [3, 3, 3, 0]


def test_only_returns_of_whole_episodes_count_and_the_first_answer_stays() -> None:
    recall = Recall(FILLER, 1, 4)
    view, agents = RecallView(recall), np.array([0])
    prompt = np.array([[1, 2, 0, 0, 0]])
    for rewards, answer in (([0.5, 0.25], [5, 6]), ([0.5, 0.5], [7]), ([2.0], [8])):
        view.observe(agents, prompt, flags(1))
        for i, reward in enumerate(rewards):
            final = np.array([[1, 2, *answer, 0, 0][:5]])
            view.record(
                agents, np.array([reward], np.float32), flags(i + 1 == len(rewards)), final, 1.0
            )
    similar = np.array([[1, 2, 3, 0, 0]])
    assert recall.find(similar).tolist() == [[7, FILLER, FILLER, FILLER]]


def test_states() -> None:
    recall = Recall(FILLER, 1, 2)
    recall.add([[1, 2, 3], [4, 5, 6]], [[7], [8]])
    again = Recall(FILLER, 1, 2)
    again.load_state_dict(recall.state_dict())
    assert again.find([[1, 2, 9]]).tolist() == [[7, FILLER]]
    again.add([[1, 2, 3]], [[9]])
    assert again.find([[1, 2, 9]]).tolist() == [[7, FILLER]]
    view, other, agents = RecallView(again), RecallView(again), np.array([1])
    view.observe(agents, np.array([[1, 2, 9, 0]]), flags(0))
    other.load_state_dict(view.state_dict())
    again.add([[1, 2, 8]], [[5]])
    row = np.array([[1, 2, 9, 3]])
    assert other.observe(agents, row, flags(0)).tolist() == [[7, FILLER, 1, 2, 9, 3]]


def test_runs_of_tokens() -> None:
    near, far, same, empty = TokenRuns(64)(["1 2 3 4", "9 8 7 6", "1 2 3 5", ""])
    assert near @ same > 0.4 > abs(near @ far)
    assert np.isclose(near @ near, 1.0)
    assert not empty.any()
    with pytest.raises(UsageError, match="whole numbers"):
        TokenRuns()(["a b"])
    with pytest.raises(UsageError, match="at least 1"):
        TokenRuns(0)
