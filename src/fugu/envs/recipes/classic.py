"""PettingZoo's classic games: boards and cards, turn by turn, with masks."""

from __future__ import annotations

from functools import partial
from typing import Any

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import make_one, modules_of


def make(name: str, **kwargs: Any) -> Any:
    """A game, as it is."""
    return make_one(f"pettingzoo.classic.{name}", "classic", **kwargs)


RECIPE = Recipe(
    prefix="pettingzoo:classic/",
    summary="Boards and cards: chess, go, connect_four, leduc_holdem, hanabi, ...",
    package="pettingzoo",
    extra="classic",
    make=make,
    names=partial(modules_of, "pettingzoo.classic"),
)
