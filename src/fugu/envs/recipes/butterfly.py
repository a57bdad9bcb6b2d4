"""PettingZoo's butterfly: teams in pictures."""

from __future__ import annotations

from functools import partial
from typing import Any

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import in_small, make_one, modules_of


def make(name: str, stack: int = 4, size: int = 84, **kwargs: Any) -> Any:
    """A game; pictures are made small and grey, some in a row, other observations stay."""
    env = make_one(f"pettingzoo.butterfly.{name}", "butterfly", **kwargs)
    seen = env.observation_space(env.possible_agents[0])
    return in_small(env, stack, size, 1, "butterfly") if len(seen.shape) == 3 else env


RECIPE = Recipe(
    prefix="pettingzoo:butterfly/",
    summary="Teams in pictures: knights_archers_zombies, pistonball, cooperative_pong",
    package="pettingzoo",
    extra="butterfly",
    make=make,
    names=partial(modules_of, "pettingzoo.butterfly"),
)
