"""The environments that vectors are measured on. Needs gymnasium and NumPy only, for any venv."""

from __future__ import annotations

import time
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MEAN_SECONDS = 200e-6  # of a straggler's step


class Noop(gymnasium.Env):
    """Does nothing: what is measured is the vector."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """The same observation."""
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """The same observation."""
        return self._observation, 0.0, False, False, {}


class Straggler(gymnasium.Env):
    """Burns CPU time with a lognormal spread; its observation is a dict."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (32, 32), np.uint8), vector=spaces.Box(-1.0, 1.0, (8,), np.float32)
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """A first observation."""
        super().reset(seed=seed)
        self._rng = np.random.default_rng(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """Busy for about 200 us, now and then for much longer."""
        sigma = 1.0
        burn = MEAN_SECONDS * self._rng.lognormal(-sigma * sigma / 2, sigma)
        end = time.thread_time() + burn
        while time.thread_time() < end:
            pass
        self._steps += 1
        return self._observe(), 1.0, False, self._steps >= 1000, {}

    def _observe(self) -> Any:
        return {"image": np.zeros((32, 32), np.uint8), "vector": np.zeros(8, np.float32)}


def breakout() -> gymnasium.Env:
    """Atari Breakout with the standard wrappers: frame skip 4, 84 x 84 grey, 4 frames stacked."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=False)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


def nethack() -> gymnasium.Env:
    """NetHack's score task."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import nle  # noqa: F401
    return gymnasium.make("NetHackScore-v0")


def cartpole() -> gymnasium.Env:
    """CartPole as Gymnasium makes it."""
    return gymnasium.make("CartPole-v1")


WORKLOADS = {
    "noop": Noop,
    "cartpole": cartpole,
    "straggler": Straggler,
    "breakout": breakout,
    "nethack": nethack,
}
