"""MuJoCo with a cost for going too fast."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.envs.recipes.mujoco import log_warnings
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.velocity import THRESHOLDS, VelocityCost, make_velocity


def make(name: str, **kwargs: Any) -> VelocityCost:
    """See `VelocityCost`."""
    log_warnings()
    return make_velocity(name, **kwargs)


def names() -> list[str]:
    """All versions of the robots that have a threshold."""
    return sorted(name for name in gymnasium.registry if name.rpartition("-v")[0] in THRESHOLDS)


RECIPE = Recipe(
    prefix="velocity:",
    summary="MuJoCo with a cost for going too fast, for Safe PPO",
    package="mujoco",
    extra="mujoco",
    make=make,
    names=names,
)
