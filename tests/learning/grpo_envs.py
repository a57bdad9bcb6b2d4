"""Environments in which it matters with whom an episode is compared."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CONTEXTS = 8


class ContextBandit(gymnasium.Env[Any, Any]):
    """One pull of the arm that the context names pays 1, on top of what the episode pays anyhow.

    That is drawn with the context and is not seen: as much as `luck` times a normal. Copies that
    begin alike have the same of it, so between them only the pull makes a difference.
    """

    def __init__(self, luck: float = 0.0) -> None:
        self._luck = luck
        self.observation_space = spaces.Discrete(CONTEXTS)
        self.action_space = spaces.Discrete(CONTEXTS)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Draw the context, and the luck."""
        super().reset(seed=seed)
        self._context = int(self.np_random.integers(CONTEXTS))
        self._base = self._luck * float(self.np_random.normal())
        return self._context, {}

    def step(self, action: Any) -> Any:
        """Pull."""
        right = float(int(action) == (3 * self._context + 1) % CONTEXTS)
        return self._context, self._base + right, True, False, {"right": right}


class Echo(gymnasium.Env[Any, Any]):
    """Ten steps; each pays 1 for the action that the observation names, else 0."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (4,))
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        """Pay for what was shown, and show something else."""
        reward = float(int(action) == self._wanted)
        self._steps += 1
        return self._show(), reward, self._steps == 10, False, {}

    def _show(self) -> Any:
        self._wanted = int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self._wanted]
