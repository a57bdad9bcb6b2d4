"""Gymnasium wrappers that recipes and users put around environments of other packages."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fugu.core.errors import UsageError

# As in safety-gymnasium's v1 tasks: half of what an unconstrained policy reaches.
THRESHOLDS = {
    "Ant": 2.6222,
    "HalfCheetah": 3.2096,
    "Hopper": 0.7402,
    "Humanoid": 1.4149,
    "Swimmer": 0.2282,
    "Walker2d": 2.3415,
}
PLANAR = ("Ant", "Humanoid")  # which move in all directions


class SeededNetHack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """NetHack and MiniHack with `reset(seed=...)`, which NLE 1.3 accepts and does not use.

    It also turns off NetHack's own reseeding in the middle of a game, so that a seed and the
    actions decide everything.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, with the seed for both of NetHack's generators."""
        if seed is not None:
            game: Any = self.unwrapped
            game.seed(core=seed, disp=seed, reseed=False)
        return self.env.reset(seed=seed, options=options)


class Float32(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations as float32, which is what policies compute with."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, env.observation_space.shape)

    def observation(self, observation: Any) -> Any:
        """Cast an observation to float32."""
        return observation.astype(np.float32)


class VelocityCost(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A cost of 1 in the info of every step that is faster than a threshold.

    Args:
        env: A MuJoCo environment whose infos have the velocity.
        threshold: Forward velocity above which a step costs.
        planar: Whether sideways velocity counts too.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], threshold: float, planar: bool = False
    ) -> None:
        super().__init__(env)
        self.threshold, self.planar = threshold, planar

    @classmethod
    def make(cls, name: str, **kwargs: Any) -> VelocityCost:
        """Make a MuJoCo environment by its id, with the threshold of its robot."""
        robot = name.rpartition("-v")[0]
        if robot not in THRESHOLDS:
            raise UsageError(
                f"velocity: expected a version of {', '.join(THRESHOLDS)}, such as "
                f"velocity:Hopper-v5; got {name!r}. Wrap others in "
                "fugu.envs.wrappers.VelocityCost."
            )
        return cls(gymnasium.make(name, **kwargs), THRESHOLDS[robot], robot in PLANAR)

    def step(self, action: Any) -> Any:
        """Step, and write the cost into the info."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        speed = info["x_velocity"]
        if self.planar:
            speed = math.hypot(speed, info["y_velocity"])
        info["cost"] = float(speed > self.threshold)
        return observation, reward, terminated, truncated, info
