"""ViZDoom: scenarios of Doom, in pixels."""

from __future__ import annotations

from contextlib import chdir
from multiprocessing.util import Finalize
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import gymnasium

from fugu.envs.recipes.pixels import SeenSmall
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import ids_of, register

GAMES = "vizdoom.gymnasium_wrapper"  # registers the ids


class InItsFolder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game that stands in a folder of its own: Doom writes files wherever it was started."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        named = {key: _in_full(value) for key, value in kwargs.items()}
        super().__init__(gymnasium.make(name, **named))
        self._folder = mkdtemp(prefix="fugu-vizdoom-")
        # A TemporaryDirectory would be removed by every fork of this process that ends.
        self._remove = Finalize(self, rmtree, (self._folder, True), exitpriority=0)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset; the first one starts Doom."""
        with chdir(self._folder):
            return super().reset(**kwargs)

    def close(self) -> None:
        """The folder goes with the game."""
        self.env.close()  # type: ignore[no-untyped-call]
        self._remove()


def _in_full(value: Any) -> Any:
    """An argument as it means the same from another folder, if it is a file's path."""
    is_file = isinstance(value, (str, Path)) and Path(value).is_file()
    return str(Path(value).resolve()) if is_file else value


def make(name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any) -> SeenSmall:
    """Grey pictures of a small screen, some in a row, beside the game's own numbers."""
    import vizdoom

    register(GAMES)
    screen = {
        "screen_format": vizdoom.ScreenFormat.GRAY8,
        "screen_resolution": vizdoom.ScreenResolution.RES_160X120,
    }
    env = InItsFolder(f"Vizdoom{name}", frame_skip=skip, **{**screen, **kwargs})
    return SeenSmall(env, (size, size), stack=stack, key="screen", extra="vizdoom")


RECIPE = Recipe(
    prefix="vizdoom:",
    summary="ViZDoom: Basic, DefendCenter, HealthGathering, ... and Doom itself",
    package="vizdoom",
    extra="vizdoom",
    make=make,
    names=ids_of(GAMES, "Vizdoom"),
)
