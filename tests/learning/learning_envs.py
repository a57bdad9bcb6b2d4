"""Environments that make learning hard in one way each. Needs gymnasium and NumPy only: workers
that are restarted often import it anew."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PLACES = np.array([0, 2])  # of the cart and of the pole in CartPole's observation


class MaskedCartPole(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole without its velocities: one observation does not tell where things go."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        whole = self.env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[PLACES], whole.high[PLACES])

    def observation(self, observation: Any) -> Any:
        """Where things are."""
        return observation[PLACES]


class CrashingCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises, exits and stalls by chance.

    Args:
        crash: Probability that a step raises.
        exit: Probability that it ends its process.
        stall: Probability that it takes for ever.
    """

    def __init__(self, crash: float, exit: float = 0.0, stall: float = 0.0) -> None:  # noqa: A002
        super().__init__(gymnasium.make("CartPole-v1"))
        self._bounds = np.cumsum([crash, exit, stall])
        self._chance = np.random.default_rng()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Reset; the seed decides on the faults too."""
        if seed is not None:
            self._chance = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step, or do not."""
        fate = int(np.searchsorted(self._bounds, self._chance.random(), side="right"))
        if fate == 0:
            raise RuntimeError("crashed by chance")
        if fate == 1:
            os._exit(7)
        if fate == 2:
            time.sleep(1000)
        return self.env.step(action)
