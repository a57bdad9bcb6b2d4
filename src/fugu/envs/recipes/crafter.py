"""Crafter: a world to survive in, with 22 achievements."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fugu.envs.recipes.recipe import Recipe


class InOrder(dict[Any, None]):
    """A set that is gone through in the order in which things came."""

    def add(self, item: Any) -> None:
        """Put something in."""
        self[item] = None

    def remove(self, item: Any) -> None:
        """Take it out."""
        del self[item]


class Survival(gymnasium.Env[Any, Any]):
    """Crafter with Gymnasium's methods, seeds that decide everything, and ends told apart.

    The info of an episode's end tells which achievements it had.
    """

    def __init__(self, reward: bool = True, size: int = 64, render_mode: str | None = None) -> None:
        import crafter

        self._game = crafter.Env(size=(size, size), reward=reward)
        self._world = self._game._world
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self._game.action_names))

        class World(type(self._world)):  # type: ignore[misc]
            """Whose creatures are gone through in order; a set's order is another every time."""

            def reset(self, seed: int | None = None) -> None:
                super().reset(seed)
                self._chunks: Any = defaultdict(InOrder)

        self._world.__class__ = World

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new world."""
        super().reset(seed=seed)
        self._game._seed = int(self.np_random.integers(2**31 - 1))
        self._game._episode = 0
        return self._game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; death terminates, the 10,000th step truncates."""
        seen, reward, done, info = self._game.step(int(action))
        dead = info["discount"] == 0.0
        told: dict[str, Any] = {}
        if done:
            told = {k: float(count > 0) for k, count in info["achievements"].items()}
            told = {"achievements": told}
        return seen, float(reward), dead, bool(done) and not dead, told

    def render(self) -> Any:
        """The world, larger."""
        return self._game.render(np.array([512, 512]))


def make(name: str, **kwargs: Any) -> Survival:
    """The world, with or without rewards."""
    return Survival(reward=name == "reward", **kwargs)


def names() -> list[str]:
    """With rewards, and without."""
    return ["noreward", "reward"]


RECIPE = Recipe(
    prefix="crafter:",
    summary="Crafter: gather, build and survive; 22 achievements",
    package="crafter",
    extra="crafter",
    make=make,
    names=names,
    default="reward",
)
