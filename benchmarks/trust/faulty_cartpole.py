"""A CartPole that crashes, takes its process with it, and stalls, each now and then."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import gymnasium

CRASH = 1e-3  # of a step
FATAL = 0.02  # of a crash: the process dies, and nothing is raised
STALL, STALL_SECONDS = 2e-5, 5.0  # of a step


class Faulty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """See the top of the file; its chance is its own, so that faults never repeat."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._chance = random.Random()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step, if all goes well."""
        if self._chance.random() < CRASH:
            if self._chance.random() < FATAL:
                os.kill(os.getpid(), signal.SIGSEGV)
            raise RuntimeError("a crash on purpose")
        if self._chance.random() < STALL:
            time.sleep(STALL_SECONDS)
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), terminated, truncated, info


def make() -> Faulty:
    """One of them."""
    return Faulty(gymnasium.make("CartPole-v1"))
