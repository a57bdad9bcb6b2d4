"""NetHack, as the NetHack Learning Environment has it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import ids_of, register
from fugu.envs.wrappers import SeededNetHack

CROP = 9  # cells on a side of what is seen around the hero
CHARACTERS, COLOURS = 128, 16
KEYS = ("chars", "colors", "blstats")


class Surroundings(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The cells around the hero, the hero's statistics, and the map as a picture of characters.

    `chars` and `colors` are the cells around the hero as categories, and `stats` are the bottom
    lines of the screen, as sign(x) log(1 + |x|); `map` is the whole map, if asked for.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], crop: int, *, whole_map: bool) -> None:
        super().__init__(env)
        seen = env.observation_space
        assert isinstance(seen, spaces.Dict)
        shape, stats = seen["chars"].shape or (), seen["blstats"].shape or ()
        if crop < 3 or crop % 2 == 0:
            raise UsageError(f"crop: given {crop}; allowed: an odd number from 3.")
        self._half, self._whole_map = crop // 2, whole_map
        self._padded = {
            key: np.zeros((shape[0] + crop - 1, shape[1] + crop - 1), np.uint8)
            for key in ("chars", "colors")
        }
        cells = (crop, crop)
        parts: dict[str, spaces.Space[Any]] = {
            "chars": spaces.MultiDiscrete(np.full(cells, CHARACTERS), dtype=np.uint8),
            "colors": spaces.MultiDiscrete(np.full(cells, COLOURS), dtype=np.uint8),
            "stats": spaces.Box(-np.inf, np.inf, stats, np.float32),
        }
        if whole_map:
            parts["map"] = spaces.Box(0, 255, (*shape, 1), np.uint8)
        self.observation_space = spaces.Dict(parts)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset, and look around."""
        observation, _ = self.env.reset(**kwargs)
        return self._look(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and look around; the end of an episode says whether it was a success."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        told: dict[str, Any] = {}
        if terminated or truncated:
            told["success"] = float(info["end_status"] == 2)  # of StepStatus: the task is done
        return self._look(observation), float(reward), terminated, truncated, told

    def _look(self, seen: Any) -> dict[str, NDArray[Any]]:
        stats = np.asarray(seen["blstats"], np.float32)
        column, row = int(stats[0]), int(stats[1])
        side = 2 * self._half + 1
        around: dict[str, NDArray[Any]] = {}
        for key, padded in self._padded.items():
            inner = padded[self._half : -self._half, self._half : -self._half]
            inner[:] = seen[key]
            around[key] = padded[row : row + side, column : column + side].copy()
        around["stats"] = np.sign(stats) * np.log1p(np.abs(stats))
        if self._whole_map:
            around["map"] = seen["chars"][..., None]
        return around


def make(name: str, crop: int = CROP, whole_map: bool = True, **kwargs: Any) -> Surroundings:
    """A task of NetHack, every game of which a seed decides."""
    register("nle")
    env = gymnasium.make(f"NetHack{name}", observation_keys=KEYS, **kwargs)
    seeded = env if name.startswith("Challenge") else SeededNetHack(env)  # which takes no seed
    return Surroundings(seeded, crop, whole_map=whole_map)


def names() -> list[str]:
    """The tasks, by what follows "NetHack"."""
    return [name for name in ids_of("nle", "NetHack")() if not name.startswith("-")]


RECIPE = Recipe(
    prefix="nethack:",
    summary="NetHack: the whole game, by tasks (Score, Staircase, Gold, ...)",
    package="nle",
    extra="nethack",
    make=make,
    draws=False,
    names=names,
    default="Score",
)
