"""MPE: particles that meet, chase and talk."""

from __future__ import annotations

from functools import partial
from typing import Any

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import make_one, modules_of


def make(name: str, **kwargs: Any) -> Any:
    """An environment of mpe2, as it is."""
    return make_one(f"mpe2.{name}", "mpe", **kwargs)


RECIPE = Recipe(
    prefix="pettingzoo:mpe/",
    summary="MPE: particles that meet, chase and talk (simple_spread, ...)",
    package="mpe2",
    extra="mpe",
    make=make,
    names=partial(modules_of, "mpe2"),
)
