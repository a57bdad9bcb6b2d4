"""Sequence tasks with a verifiable reward: write a prompt again, token by token."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError

Tokens = NDArray[np.int64]


class SequenceTask(gymnasium.Env[Any, Any]):
    """A prompt of random tokens is to be copied, or reversed; one token is one step.

    The observation is the sequence so far: the prompt, a mark at its end, what was written since,
    and zeros where nothing stands yet. The episode ends when as many tokens were written as the
    prompt has, and only then there is a reward.

    Args:
        task: "copy" or "reverse".
        tokens: Different ones in a prompt.
        shortest: Prompt.
        longest: Prompt.
        reward: "share" of the tokens that are right, or "exact": 1 if all of them are.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        task: Literal["copy", "reverse"] = "copy",
        tokens: int = 4,
        shortest: int = 2,
        longest: int = 5,
        reward: Literal["share", "exact"] = "share",
    ) -> None:
        for name, value, allowed in (
            ("task", task, ("copy", "reverse")),
            ("reward", reward, ("share", "exact")),
        ):
            if value not in allowed:
                raise UsageError(f"{name}: given {value!r}; allowed: {', '.join(allowed)}.")
        if not 1 <= shortest <= longest or tokens < 2:
            raise UsageError(
                f"given shortest={shortest}, longest={longest}, tokens={tokens}; allowed: 1 or "
                "more and not above longest, and 2 tokens or more."
            )
        self._task, self._tokens, self._reward = task, tokens, reward
        self._lengths = shortest, longest
        self._mark = tokens + 1
        # 0 is nothing, tokens count from 1, the mark comes last.
        self._places = 2 * longest + 1
        self.observation_space = spaces.MultiDiscrete([tokens + 2] * self._places)
        self.action_space = spaces.Discrete(tokens)
        self._wanted = np.zeros(0, np.int64)
        self._written: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tokens, dict[str, Any]]:
        """Show a new prompt."""
        super().reset(seed=seed)
        length = int(self.np_random.integers(self._lengths[0], self._lengths[1] + 1))
        self._prompt = self.np_random.integers(1, self._tokens + 1, size=length)
        self._wanted = self._prompt[::-1] if self._task == "reverse" else self._prompt
        self._written = []
        return self._observe(), {}

    def step(self, action: int) -> tuple[Tokens, float, bool, bool, dict[str, Any]]:
        """Write one token."""
        self._written.append(int(action) + 1)
        if len(self._written) < len(self._wanted):
            return self._observe(), 0.0, False, False, {}
        right = float(np.mean(np.array(self._written) == self._wanted))
        reward = right if self._reward == "share" else float(right == 1.0)
        return self._observe(), reward, True, False, {"exact": float(right == 1.0)}

    def _observe(self) -> Tokens:
        seen = np.zeros(self._places, np.int64)
        sequence = [*self._prompt, self._mark, *self._written]
        seen[: len(sequence)] = sequence
        return seen
