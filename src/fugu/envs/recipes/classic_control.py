"""Classic control: a pole, a pendulum, an acrobot, a car in a valley."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import alias_of, newest_of


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make one of Gymnasium's environments, as it is."""
    return gymnasium.make(name, **kwargs)


RECIPE = Recipe(
    prefix="classic_control:",
    summary="classic control: CartPole, Pendulum, Acrobot, MountainCar",
    package="gymnasium",
    extra="train",
    make=make,
    names=newest_of("gymnasium", "gymnasium.envs.classic_control"),
    alias=alias_of("gymnasium.envs.classic_control"),
)
