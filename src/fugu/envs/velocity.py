"""Velocity-constrained MuJoCo tasks: the stock environments, with a cost for going too fast."""

from __future__ import annotations

import math
from typing import Any

import gymnasium

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


class VelocityCost(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A cost of 1 in the info of every step that is faster than a threshold.

    Speed is the forward velocity, in the plane for robots that move in all directions.

    Args:
        env: A MuJoCo environment whose infos tell the velocity.
        threshold: Above which a step costs.
        planar: Whether sideways velocity counts too.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], threshold: float, planar: bool = False
    ) -> None:
        super().__init__(env)
        self.threshold, self.planar = threshold, planar

    def step(self, action: Any) -> Any:
        """Step, and say what it cost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        speed = info["x_velocity"]
        if self.planar:
            speed = math.hypot(speed, info["y_velocity"])
        info["cost"] = float(speed > self.threshold)
        return observation, reward, terminated, truncated, info


def make_velocity(name: str, **kwargs: Any) -> VelocityCost:
    """A MuJoCo environment by its id, with the threshold that its robot is given."""
    robot = name.rpartition("-v")[0]
    if robot not in THRESHOLDS:
        raise UsageError(
            f"velocity: given {name!r}; allowed: versions of {', '.join(THRESHOLDS)}, such as "
            "velocity:Hopper-v5. Wrap others in fugu.envs.velocity.VelocityCost."
        )
    return VelocityCost(gymnasium.make(name, **kwargs), THRESHOLDS[robot], robot in PLANAR)
