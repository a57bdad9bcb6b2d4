"""The DeepMind Control Suite, through Shimmy."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import FlattenObservation

from fugu.envs.recipes.float32 import Float32
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import ids_of, register


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A task of the suite, what it sees side by side in one array of float32."""
    register("shimmy")
    return Float32(FlattenObservation(gymnasium.make(f"dm_control/{name}", **kwargs)))


def names() -> list[str]:
    """Tasks of the suite, such as cartpole-balance-v0."""
    found = ids_of("shimmy", "dm_control/")()
    return [name for name in found if not name.startswith("compatibility-env")]


RECIPE = Recipe(
    prefix="dm_control:",
    summary="DeepMind Control: cartpole-swingup, walker-walk, cheetah-run, ...",
    package="dm_control",
    extra="dm-control",
    make=make,
    names=names,
)
