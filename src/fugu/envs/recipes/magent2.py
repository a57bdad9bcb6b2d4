"""MAgent2: battles of many agents on a grid."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from fugu.envs.recipes.recipe import Recipe


def make(name: str, **kwargs: Any) -> Any:
    """One of its environments, all agents of which act at once."""
    return importlib.import_module(f"magent2.environments.{name}").parallel_env(**kwargs)


def names() -> list[str]:
    """Those with a version."""
    found = pkgutil.iter_modules(importlib.import_module("magent2.environments").__path__)
    return sorted(each.name for each in found if "_v" in each.name)


RECIPE = Recipe(
    prefix="magent2:",
    summary="MAgent2: battle, gather, tiger_deer, ... with up to hundreds of agents",
    package="magent2",
    extra="magent2",
    make=make,
    names=names,
)
