"""Environments whose every observation tells where it belongs. Workers import it too."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Diary(gymnasium.Env[Any, Any]):
    """Observations are the episode's number, the time, what was done last, and a secret.

    Episodes last 3 to 9 steps and end by themselves or are cut off. The reward is the time.
    """

    observation_space = spaces.Box(-1.0, 1e6, (4,))
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self._episode = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """The next episode."""
        super().reset(seed=seed)
        self._episode += 1
        self._time, self._done = 0, -1.0
        self._secret = float(self.np_random.integers(1000))
        self._length = int(self.np_random.integers(3, 10))
        self._cut = bool(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """The next page."""
        self._time, self._done = self._time + 1, float(action)
        over = self._time == self._length
        return (
            self._observation(),
            float(self._time),
            over and not self._cut,
            over and self._cut,
            {},
        )

    def _observation(self) -> Any:
        return np.array([self._episode, self._time, self._done, self._secret], np.float32)


class Ball(gymnasium.Env[Any, Any]):
    """A picture of a ball that an action moves to the left or to the right, and its speed."""

    observation_space = spaces.Dict(
        picture=spaces.Box(0, 255, (16, 20, 3), np.uint8), speed=spaces.Box(-1.0, 1.0, (1,))
    )
    action_space = spaces.Discrete(3)

    def __init__(self, picture_only: bool = False) -> None:
        self._picture_only = picture_only
        if picture_only:
            self.observation_space = self.observation_space["picture"]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """The ball is somewhere."""
        super().reset(seed=seed)
        self._place, self._speed, self._time = int(self.np_random.integers(3, 17)), 0, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """The ball rolls."""
        self._speed = int(action) - 1
        self._place = int(np.clip(self._place + self._speed, 1, 18))
        self._time += 1
        return self._observation(), float(self._place > 10), False, self._time == 30, {}

    def _observation(self) -> Any:
        picture = np.zeros((16, 20, 3), np.uint8)
        picture[6:10, self._place - 1 : self._place + 2] = (250, 120, 40)
        if self._picture_only:
            return picture
        return {"picture": picture, "speed": np.array([self._speed], np.float32)}
