"""Atari games of several players, as PettingZoo has them, with the ROMs of ale-py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.zoo import in_small, make_one, modules_of


def make(name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any) -> Any:
    """A game in small and grey pictures, some in a row, each action some times over."""
    try:
        import ale_py.roms
    except ModuleNotFoundError as error:
        raise MissingExtraError("ale-py", "arcade") from error
    home = {"auto_rom_install_path": str(Path(ale_py.roms.__file__).parent), **kwargs}
    env = make_one(f"pettingzoo.atari.{name}", "arcade", **home)
    return in_small(env, stack, size, skip, "arcade")


RECIPE = Recipe(
    prefix="pettingzoo:atari/",
    summary="Atari games of several players (pong, warlords, ...)",
    package="multi_agent_ale_py",
    extra="arcade",
    make=make,
    names=partial(modules_of, "pettingzoo.atari"),
)
