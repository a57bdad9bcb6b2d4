"""A recipe of another package, as its authors would write it: counters that step at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.envs.batch_env import BatchEnv, Moves
from fugu.envs.recipes import Recipe

SEEN = spaces.Dict(place=spaces.Box(-9, 99, (2,), np.float32), luck=spaces.Discrete(7))
ACTIONS = spaces.Discrete(3)


class Counters(BatchEnv):
    """Each copy adds its action to its place; at `goal` it ends, after `limit` steps it is cut."""

    def __init__(self, num_envs: int, goal: int, limit: int, fails_at: int, sleeps: float) -> None:
        super().__init__(num_envs, SEEN, ACTIONS)
        self.goal, self.limit, self.fails_at, self.sleeps = goal, limit, fails_at, sleeps
        self.places = np.zeros((num_envs, 2), np.float32)
        self.steps = np.zeros(num_envs, np.int64)
        self.seeds = np.zeros(num_envs, np.int64)
        self.total = 0
        self.closed = False

    def begin(self, seeds: Sequence[int | None]) -> Any:
        self.seeds[:] = [(seed or 0) % 7 for seed in seeds]
        self.places[:] = self.steps[:] = 0
        return self.look()

    def advance(self, actions: NDArray[np.int64]) -> Moves:
        self.total += 1
        if self.total == self.fails_at:
            raise RuntimeError("the device is gone")
        time.sleep(self.sleeps)
        self.places[:, 0] += actions
        self.steps += 1
        terminations = self.places[:, 0] >= self.goal
        truncations = (self.steps >= self.limit) & ~terminations
        ended, final = terminations | truncations, self.look()
        infos = {i: {"luck": float(self.seeds[i])} for i in np.flatnonzero(ended).tolist()}
        self.places[ended] = self.steps[ended] = 0
        self.places[ended, 1] += 1
        return Moves(self.look(), actions.astype(float), terminations, truncations, final, infos)

    def look(self) -> Any:
        return {"place": self.places.copy(), "luck": self.seeds.copy()}

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def batch(name: str, num_envs: int, threads: int, **kwargs: Any) -> Counters:
    options: dict[str, Any] = {"goal": 7, "limit": 9, "fails_at": 0, "sleeps": 0.0}
    return Counters(num_envs, **{**options, **kwargs})


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **kwargs)


def names() -> list[str]:
    return ["counter-v0", "counter-v1"]


RECIPE = Recipe(
    prefix="visiting:",
    summary="Counters of another package",
    package="visiting",
    extra="visiting",
    names=names,
    batch=batch,
    default="counter",
)
