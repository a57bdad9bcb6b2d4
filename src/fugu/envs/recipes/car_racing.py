"""CarRacing: a track from above, in pixels."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.envs.recipes.pixels import SeenSmall
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import ids_of


def make(name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any) -> SeenSmall:
    """Grey pictures, some in a row, each action some times over; `continuous=False` for keys."""
    env = gymnasium.make(f"CarRacing{name}", **kwargs)
    return SeenSmall(env, (size, size), skip=skip, stack=stack, extra="box2d")


RECIPE = Recipe(
    prefix="box2d:CarRacing",
    summary="CarRacing: a track from above, in pixels",
    package="Box2D",
    extra="box2d",
    make=make,
    names=ids_of("gymnasium", "CarRacing"),
)
