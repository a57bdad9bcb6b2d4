"""Recall: answers to similar prompts, which stand before the tokens that a policy sees.

Prompts and answers are tokens; 0 means no token. The first observation of an episode is its
prompt, and the tokens behind it in the last observation are the answer. Answers of episodes with a
sufficient return are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.memory.embedders import TokenRuns
from fugu.memory.items import AnyMemory, Item, Where, content_id
from fugu.memory.memory import Memory

Tokens = NDArray[Any]  # [rows, tokens]
MAX_PROMPTS = 100_000  # search is exact up to here
ANSWER = "answer"


class Recall:
    """A memory of prompts and their answers, as tokens.

    Args:
        filler: The token that fills up answers that are too short or missing.
        count: The number of answers to show; the answer to the most similar prompt comes first.
        length: The number of tokens of each answer: its last ones.
        memory: Where answers are stored; None: a new memory in this process.

    Attributes:
        width: The number of tokens that are shown, with fillers.

    >>> recall = Recall(filler=9, count=1, length=3)
    >>> recall.add([[1, 2, 3]], [[7, 8]])
    >>> recall.find([[1, 2, 4], [1, 2, 3]]).tolist()  # never the answer to the prompt itself
    [[7, 8, 9], [9, 9, 9]]
    """

    def __init__(
        self, filler: int, count: int, length: int, memory: AnyMemory | None = None
    ) -> None:
        self.memory: AnyMemory = Memory(TokenRuns()) if memory is None else memory
        self.width = count * length
        self._filler, self._count, self._length = filler, count, length
        self._known: set[str] = set()  # ids of prompts
        self._found: dict[str, Tokens] = {}  # answers for texts, until the memory changes

    def add(self, prompts: Sequence[Any] | Tokens, answers: Sequence[Any] | Tokens) -> None:
        """Remember the first answer to each prompt, with one call of the memory for all."""
        fresh: dict[str, Item] = {}
        for prompt, answer in zip(prompts, answers, strict=True):
            text = to_text(prompt)
            name = content_id("", text)
            if text and name not in self._known and len(self._known) < MAX_PROMPTS:
                metadata = {ANSWER: to_text(answer)}
                fresh[name] = Item(text, reward=1.0, task=name, id=name, metadata=metadata)
                self._known.add(name)
        if fresh:
            self.memory.add(fresh.values())
            self._found.clear()

    def find(self, prompts: Sequence[Any] | Tokens) -> Tokens:
        """Return the tokens to show [prompts, width], with one query of the memory for all."""
        texts = [to_text(prompt) for prompt in prompts]
        asked = [text for text in dict.fromkeys(texts) if text and text not in self._found]
        if asked and self._known:
            wheres = [Where(not_task=content_id("", text)) for text in asked]
            answers = self.memory.query(asked, self._count, where=wheres)
            for text, matches in zip(asked, answers, strict=True):
                found = [match.item.metadata.get(ANSWER, "") for match in matches]
                self._found[text] = self._to_tokens(found)
        nothing = self._to_tokens([])
        return np.array([self._found.get(text, nothing) for text in texts]).reshape(-1, self.width)

    def _to_tokens(self, answers: Sequence[str]) -> Tokens:
        shown = np.full((self._count, self._length), self._filler, np.int64)
        for row, answer in zip(shown, answers, strict=False):
            tokens = [int(word) for word in answer.split()][-self._length :]
            row[: len(tokens)] = tokens
        return shown.reshape(-1)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays, for a checkpoint; empty if a service stores the answers."""
        return self.memory.state() if isinstance(self.memory, Memory) else {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to what `state_dict` returned."""
        if state and isinstance(self.memory, Memory):
            self.memory = Memory.from_state(state, self.memory.embedder)
            self._known = {item.id for item in self.memory}
        self._found.clear()


class RecallView:
    """The tokens that the agents of one vector are shown, which change with their episodes only."""

    def __init__(self, recall: Recall) -> None:
        self._recall = recall
        self._shown = np.zeros((0, recall.width), np.int64)  # [agents, width]
        self._prompts: Tokens = np.zeros((0, 0), np.int64)  # [agents, tokens]
        self._returns = np.zeros(0)  # [agents]

    def observe(self, agents: NDArray[np.int64], rows: Tokens, starts: NDArray[np.bool_]) -> Tokens:
        """Look up answers for new episodes, and return the rows with answers before them.

        An episode starts where `starts` says so [rows], and with a new agent or prompt.
        """
        self._grow(agents, rows.shape[1])
        prompts = self._prompts[agents]
        same = np.where(prompts != 0, rows == prompts, True).all(1) & (prompts != 0).any(1)
        starts = starts | ~same
        if starts.any():
            fresh = agents[starts]
            self._shown[fresh] = self._recall.find(rows[starts])
            self._prompts[fresh], self._returns[fresh] = rows[starts], 0.0
        return self.prepend(agents, rows)

    def prepend(self, agents: NDArray[np.int64], rows: Tokens) -> Tokens:
        """Return the rows with the answers of the current episodes before them."""
        self._grow(agents, rows.shape[1])
        found: Tokens = np.concatenate([self._shown[agents].astype(rows.dtype), rows], 1)
        return found

    def record(
        self,
        agents: NDArray[np.int64],
        rewards: NDArray[np.float32],
        ends: NDArray[np.bool_],
        final: Tokens,
        min_return: float,
    ) -> None:
        """Add rewards, and remember the answers of episodes that end with enough of them.

        Args:
            agents: The agents that were rewarded [rows].
            rewards: Their rewards since they last acted [rows].
            ends: Whether their episodes ended [rows].
            final: The last observations of ended episodes [rows, tokens].
            min_return: The smallest return of an episode to remember.
        """
        seen = agents < len(self._returns)
        agents, rewards, ends, final = agents[seen], rewards[seen], ends[seen], final[seen]
        self._returns[agents] += rewards
        good = ends & (self._returns[agents] >= min_return)
        prompts = self._prompts[agents[good]]
        lengths = (prompts != 0).sum(1).tolist()
        answers = [row[length:] for row, length in zip(final[good], lengths, strict=True)]
        self._recall.add(prompts, answers)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state of all agents, for a checkpoint."""
        return {"shown": self._shown, "prompts": self._prompts, "returns": self._returns}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to what `state_dict` returned."""
        self._shown, self._prompts = state["shown"].copy(), state["prompts"].copy()
        self._returns = state["returns"].copy()

    def _grow(self, agents: NDArray[np.int64], tokens: int) -> None:
        """Make room for new agents."""
        known = len(self._returns)
        more = int(agents.max(initial=-1)) + 1 - known
        if more > 0:
            self._prompts = np.pad(self._prompts.reshape(known, tokens), ((0, more), (0, 0)))
            self._shown = np.pad(self._shown, ((0, more), (0, 0)))
            self._returns = np.pad(self._returns, (0, more))


def to_text(tokens: Any) -> str:
    """Return the tokens before the first 0 as words.

    >>> to_text([3, 12, 0, 5])
    '3 12'
    """
    words = []
    for token in np.asarray(tokens).tolist():
        if token == 0:
            break
        words.append(str(token))
    return " ".join(words)
