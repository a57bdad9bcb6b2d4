"""PettingZoo: families that have no recipe of their own."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import make_one, modules_of


def make(name: str, **kwargs: Any) -> Any:
    """An environment, as it is."""
    family, _, title = name.partition("/")
    return make_one(f"pettingzoo.{family}.{title}", "pettingzoo", **kwargs)


def names() -> list[str]:
    """Those of all families."""
    folder = importlib.import_module("pettingzoo").__path__
    families = {"mpe": "mpe2"} | {
        found.name: f"pettingzoo.{found.name}" for found in pkgutil.iter_modules(folder)
    }
    return [f"{family}/{n}" for family, package in families.items() for n in modules_of(package)]


RECIPE = Recipe(
    prefix="pettingzoo:",
    summary="PettingZoo: families that have no recipe of their own",
    package="pettingzoo",
    extra="pettingzoo",
    make=make,
    names=names,
)
