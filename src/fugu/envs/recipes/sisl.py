"""PettingZoo's SISL: teams that pursue and carry."""

from __future__ import annotations

from functools import partial
from typing import Any

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import make_one, modules_of


def make(name: str, **kwargs: Any) -> Any:
    """A task, as it is."""
    return make_one(f"pettingzoo.sisl.{name}", "sisl", **kwargs)


RECIPE = Recipe(
    prefix="pettingzoo:sisl/",
    summary="SISL: teams that pursue and carry (pursuit, multiwalker)",
    package="pettingzoo",
    extra="sisl",
    make=make,
    names=partial(modules_of, "pettingzoo.sisl"),
)
