"""Box2D: landing, walking and driving."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import alias_of, newest_of


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One of Gymnasium's, as it is; CarRacing has a recipe of its own."""
    return gymnasium.make(name, **kwargs)


RECIPE = Recipe(
    prefix="box2d:",
    summary="Box2D: LunarLander, BipedalWalker",
    package="Box2D",
    extra="box2d",
    make=make,
    names=newest_of("gymnasium", "gymnasium.envs.box2d"),
    alias=alias_of("gymnasium.envs.box2d"),
)
