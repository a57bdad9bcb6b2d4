"""Numbers in half the space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Float32(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations as float32, which is what policies compute with."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, env.observation_space.shape)

    def observation(self, observation: Any) -> Any:
        """As float32."""
        return observation.astype(np.float32)
