"""MiniHack: small tasks made of NetHack."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.envs.recipes.nethack import CROP, KEYS, Surroundings
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import ids_of, register
from fugu.envs.wrappers import SeededNetHack


def make(name: str, crop: int = CROP, whole_map: bool = False, **kwargs: Any) -> Surroundings:
    """A task of MiniHack, every game of which a seed decides; most fit into the hero's cells."""
    register("minihack")
    env = gymnasium.make(f"MiniHack-{name}", observation_keys=KEYS, **kwargs)
    return Surroundings(SeededNetHack(env), crop, whole_map=whole_map)


RECIPE = Recipe(
    prefix="minihack:",
    summary="MiniHack: rooms, mazes, rivers and skills in NetHack's world",
    package="minihack",
    extra="nethack",
    make=make,
    draws=False,
    names=ids_of("minihack", "MiniHack-"),
)
