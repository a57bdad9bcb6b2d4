"""MAgent2: battles of many agents on a grid."""

from __future__ import annotations

from functools import partial
from typing import Any

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import make_one, modules_of


def make(name: str, **kwargs: Any) -> Any:
    """One of its environments, all agents of which act at once."""
    return make_one(f"magent2.environments.{name}", "magent2", **kwargs)


RECIPE = Recipe(
    prefix="magent2:",
    summary="MAgent2: battle, gather, tiger_deer, ... with up to hundreds of agents",
    package="magent2",
    extra="magent2",
    make=make,
    names=partial(modules_of, "magent2.environments"),
)
