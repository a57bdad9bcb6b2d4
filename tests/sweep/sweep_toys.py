"""An environment whose faults and pace are settings, for trials in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np


class Choosing(gymnasium.Env[Any, Any]):
    """Four steps an episode; the second action earns 1."""

    def __init__(self, fault: str = "none", pace: float = 0.0, worth: float = 1.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._fault, self._pace, self._worth = fault, pace, worth
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pace)
        self._steps += 1
        if self._steps == 3 and self._fault == "raise":
            raise RuntimeError("the toy is broken")
        if self._steps == 3 and self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        reward = float("nan") if self._fault == "lost_number" else self._worth * float(action == 1)
        return np.zeros(2, np.float32), reward, self._steps == 4, False, {}


def make(**settings: Any) -> Choosing:
    return Choosing(**settings)
