"""Recall: answers to prompts like an agent's own, set before the tokens that it sees.

Prompts and answers are tokens, 0 being none: what is seen first in an episode is its prompt, what
stands behind it in the end is the answer. Answers of episodes that were worth it are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.memory.embedders import TokenRuns
from fugu.memory.items import ANYWHERE, AnyMemory, Item, Where, content_id
from fugu.memory.memory import Memory

Tokens = NDArray[Any]  # [rows, places]
MOST = 100_000  # prompts to remember: up to here search is exact
ANSWER = "answer"


class Recall:
    """A memory of prompts and their answers, as tokens.

    Args:
        filler: The token that stands where an answer has none.
        count: Answers that are shown, those to the most similar prompts first.
        length: Tokens of each, its last ones.
        memory: Where they are kept; a new one in this process if not given.
        own: Whether a prompt may be shown its own answer, once that is known.

    Attributes:
        memory: Where they are kept.
        width: Tokens that are shown, fillers among them.

    >>> recall = Recall(filler=9, count=1, length=3)
    >>> recall.add([[1, 2, 3]], [[7, 8]])
    >>> recall.find([[1, 2, 4], [1, 2, 3]]).tolist()
    [[7, 8, 9], [9, 9, 9]]
    """

    def __init__(
        self,
        filler: int,
        count: int,
        length: int,
        memory: AnyMemory | None = None,
        *,
        own: bool = False,
    ) -> None:
        self.memory: AnyMemory = Memory(TokenRuns()) if memory is None else memory
        self.width = count * length
        self._filler, self._count, self._length, self._own = filler, count, length, own
        self._known: set[str] = set()
        self._found: dict[str, Tokens] = {}  # since the memory changed last

    def add(self, prompts: Sequence[Any] | Tokens, answers: Sequence[Any] | Tokens) -> None:
        """Remember answers, the first one to each prompt; one call of the memory for all."""
        fresh: dict[str, Item] = {}
        for prompt, answer in zip(prompts, answers, strict=True):
            text = to_text(prompt)
            name = content_id("", text)
            if text and name not in self._known and len(self._known) < MOST:
                told = {ANSWER: to_text(answer)}
                fresh[name] = Item(text, reward=1.0, task=name, id=name, metadata=told)
                self._known.add(name)
        if fresh:
            self.memory.add(fresh.values())
            self._found.clear()

    def find(self, prompts: Sequence[Any] | Tokens) -> Tokens:
        """What to show before each prompt, `[prompts, width]`; one query of the memory for all."""
        texts = [to_text(prompt) for prompt in prompts]
        asked = [text for text in dict.fromkeys(texts) if text and text not in self._found]
        if asked and self._known:
            wheres = [ANYWHERE if self._own else Where(not_task=content_id("", t)) for t in asked]
            answers = self.memory.query(asked, self._count, where=wheres)
            for text, matches in zip(asked, answers, strict=True):
                told = [match.item.metadata.get(ANSWER, "") for match in matches]
                self._found[text] = self._shown(told)
        nothing = self._shown([])
        return np.array([self._found.get(text, nothing) for text in texts]).reshape(-1, self.width)

    def view(self) -> RecallView:
        """What the agents of one vector are shown."""
        return RecallView(self)

    def _shown(self, answers: Sequence[str]) -> Tokens:
        shown = np.full((self._count, self._length), self._filler, np.int64)
        for row, answer in zip(shown, answers, strict=False):
            tokens = [int(word) for word in answer.split()][-self._length :]
            row[: len(tokens)] = tokens
        return shown.reshape(-1)

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """All that is remembered, as arrays; empty if the memory is a service's."""
        return self.memory.state() if isinstance(self.memory, Memory) else {}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state()`."""
        if state and isinstance(self.memory, Memory):
            self.memory = Memory.from_state(state, self.memory.embedder)
            self._known = {item.id for item in self.memory}
        self._found.clear()


class RecallView:
    """What the agents of one vector are shown; it stays as it is until their episode ends."""

    def __init__(self, recall: Recall) -> None:
        self._recall = recall
        self._shown = np.zeros((0, recall.width), np.int64)
        self._prompts: Tokens = np.zeros((0, 0), np.int64)
        self._returns = np.zeros(0)

    def look(self, agents: NDArray[np.int64], rows: Tokens, begins: NDArray[np.bool_]) -> Tokens:
        """Rows `[agents, places]` with what is shown before them.

        Args:
            agents: Whose.
            rows: What they see.
            begins: Whose episode does so; those who are seen for the first time begin anyhow, and
                those who see another prompt.
        """
        self._grow(int(agents.max(initial=-1)) + 1, rows.shape[1])
        prompts = self._prompts[agents]
        same = np.where(prompts != 0, rows == prompts, True).all(1) & (prompts != 0).any(1)
        begins = begins | ~same
        if begins.any():
            fresh = agents[begins]
            self._shown[fresh] = self._recall.find(rows[begins])
            self._prompts[fresh], self._returns[fresh] = rows[begins], 0.0
        return self.before(agents, rows)

    def before(self, agents: NDArray[np.int64], rows: Tokens) -> Tokens:
        """Rows with what was shown last before them."""
        self._grow(int(agents.max(initial=-1)) + 1, rows.shape[1])
        found: Tokens = np.concatenate([self._shown[agents].astype(rows.dtype), rows], 1)
        return found

    def notice(
        self,
        agents: NDArray[np.int64],
        rewards: NDArray[np.float32],
        ends: NDArray[np.bool_],
        final: Tokens,
        worth: float,
    ) -> None:
        """What reached agents: answers of episodes that end with such a return are remembered.

        Args:
            agents: Whose.
            rewards: Theirs since they acted last.
            ends: Whose episode ended now.
            final: What they saw last, where it did.
            worth: The least return of an episode that is remembered.
        """
        seen = agents < len(self._returns)
        agents, rewards, ends, final = agents[seen], rewards[seen], ends[seen], final[seen]
        self._returns[agents] += rewards
        good = ends & (self._returns[agents] >= worth)
        prompts = self._prompts[agents[good]]
        lengths = (prompts != 0).sum(1).tolist()
        answers = [row[length:] for row, length in zip(final[good], lengths, strict=True)]
        self._recall.add(prompts, answers)

    def state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        return {"shown": self._shown, "prompts": self._prompts, "returns": self._returns}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state()`."""
        self._shown, self._prompts = state["shown"].copy(), state["prompts"].copy()
        self._returns = state["returns"].copy()

    def _grow(self, agents: int, places: int) -> None:
        more = agents - len(self._returns)
        if more > 0:
            fresh = np.zeros((more, self._recall.width), np.int64)
            self._shown = np.concatenate([self._shown, fresh])
            known = self._prompts.reshape(len(self._returns), places)
            self._prompts = np.concatenate([known, np.zeros((more, places), np.int64)])
            self._returns = np.concatenate([self._returns, np.zeros(more)])


def to_text(tokens: Any) -> str:
    """Tokens up to the first 0 as words.

    >>> to_text([3, 12, 0, 5])
    '3 12'
    """
    words = []
    for token in np.asarray(tokens).tolist():
        if token == 0:
            break
        words.append(str(token))
    return " ".join(words)
