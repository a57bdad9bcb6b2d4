"""Recipes: environments of other packages by one word, made and trained in the usual way.

A module of this folder has its `RECIPES`; a TOML file beside it has the settings of each.
"""

from __future__ import annotations

import importlib
from functools import cache

from fugu.envs import suite
from fugu.envs.recipes.recipe import Recipe

GROUP = "fugu.recipes"  # entry points of other packages that name a module with a RECIPE
MODULES = ("atari", "batched", "emulators", "gym_families", "pettingzoo_families", "roguelikes")

__all__ = ["GROUP", "Recipe", "all_recipes", "find_recipe", "recipe_name"]


@cache
def all_recipes() -> tuple[Recipe, ...]:
    """Return the recipes of fugu and of other packages, whether they can be used here or not."""
    from importlib.metadata import entry_points  # slow to import, and not always needed

    names = [f"{__name__}.{name}" for name in MODULES]
    names += [point.value for point in entry_points(group=GROUP)]
    found: list[Recipe] = []
    for name in names:
        module = importlib.import_module(name)
        found += getattr(module, "RECIPES", None) or (module.RECIPE,)
    return tuple(sorted(found, key=lambda recipe: recipe.prefix.lower()))


def find_recipe(env: str) -> Recipe | None:
    """Return the recipe that a name belongs to, installed or not.

    >>> find_recipe("procgen:coinrun").extra, find_recipe("nethack").extra, find_recipe("CartPole")
    ('procgen', 'nethack', None)
    """
    fitting = [recipe for recipe in all_recipes() if recipe.means(env)]
    return max(fitting, key=lambda recipe: len(recipe.prefix), default=None)


def recipe_name(env: str) -> str:
    """Return the name by which a recipe knows a plain Gymnasium id, or the name as it is.

    >>> recipe_name("LunarLander-v3"), recipe_name("MiniGrid-Empty-5x5-v0"), recipe_name("breakout")
    ('box2d:LunarLander-v3', 'minigrid:Empty-5x5-v0', 'breakout')
    """
    if suite.find(env) or find_recipe(env) is not None:
        return env
    for recipe in all_recipes():
        name = recipe.alias(env) if recipe.alias is not None else None
        if name is not None:
            return recipe.prefix + name
    return env
