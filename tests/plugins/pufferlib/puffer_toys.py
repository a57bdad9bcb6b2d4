"""Small environments for the tests of PufferLib's interface."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import fugu_pufferlib as pufferlib

u8 = spaces.Box(0, 255, (1,), np.uint8)
f32 = spaces.Box(-9, 9, (2,), np.float32)


class Echo(gymnasium.Env[Any, Any]):
    """Shows samples of any space, and keeps what it was given."""

    def __init__(self, observation: Any, action: Any = None) -> None:
        self.observation_space, self.action_space = observation, action or spaces.Discrete(2)
        self.shown: Any = None
        self.taken: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.shown = self.observation_space.sample()
        return self.shown, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.taken, self.shown = action, self.observation_space.sample()
        return self.shown, 0.0, False, False, {}


class Bare(pufferlib.PufferEnv):
    """Remembers how it was made and reset."""

    single_observation_space = spaces.Box(-9999, 9999, (3,), np.int32)
    single_action_space = spaces.Discrete(4)
    num_agents = 2

    def __init__(self, mark: int = 0, buf: Any = None, seed: int | None = 0) -> None:
        super().__init__(buf)
        self.mark, self.seed, self.notified = mark, seed, 0

    def reset(self, seed: int | None = None) -> Any:
        self.observations[:] = [self.mark, self.seed, -1 if seed is None else seed]
        return self.observations, []

    def step(self, actions: Any) -> Any:
        if (actions == 3).any():
            raise RuntimeError("three is too much")
        self.observations[:, 0] = self.notified
        self.rewards[:] = actions
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def notify(self) -> None:
        self.notified += 1


def bare(mark: int = 0, buf: Any = None, seed: int | None = 0) -> Bare:
    """The same by a function."""
    return Bare(mark, buf, seed)
