"""Toy text: small tables of states, as Gymnasium has them."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import alias_of, newest_of


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make one of Gymnasium's environments, as it is."""
    return gymnasium.make(name, **kwargs)


RECIPE = Recipe(
    prefix="toy_text:",
    summary="toy text: FrozenLake, Taxi, CliffWalking, Blackjack",
    package="gymnasium",
    extra="train",
    make=make,
    names=newest_of("gymnasium", "gymnasium.envs.toy_text"),
    alias=alias_of("gymnasium.envs.toy_text"),
)
