"""Procgen: sixteen games whose levels are made anew for every episode."""

from __future__ import annotations

import warnings
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.recipes.recipe import Recipe

GAMES = [
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
]
ACTIONS = 15


class Level(gymnasium.Env[Any, Any]):
    """One copy of a game.

    A seed makes the game anew, so that it decides all levels that follow. The game shows the next
    level in the step that ends one: the last picture before stands for the one it never shows, and
    an end by time is not told from others.

    Args:
        game: One of `GAMES`.
        num_levels: Levels there are; 0: all that can be.
        start_level: The first of them.
        distribution_mode: "easy", "hard", or what else the game has.
        render_mode: "rgb_array" for large pictures.
        options: Other options of Procgen.
    """

    def __init__(
        self,
        game: str,
        num_levels: int = 0,
        start_level: int = 0,
        distribution_mode: str = "easy",
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(ACTIONS)
        levels = {"num_levels": num_levels, "start_level": start_level}
        mode = {"distribution_mode": distribution_mode, "render_mode": render_mode}
        self._options = {"env_name": game, **levels, **mode, **options}
        self._game: Any = None
        self._seen = np.zeros((64, 64, 3), np.uint8)
        self._action = np.zeros(1, np.int32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """The first level of a seed; without one, the next level."""
        super().reset(seed=seed)
        if seed is not None or self._game is None:
            self._begin(int(self.np_random.integers(2**31 - 1)))
        elif not self._first:  # in the middle of a level, which no game lets one leave
            raise UsageError("reset: given no seed in the middle of an episode; allowed: a seed.")
        return self._look(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Act."""
        self._action[0] = action
        self._game.act(self._action)
        (reward,), _, (self._first,) = self._game.observe()
        if self._first:
            (info,) = self._game.get_info()
            return self._seen, float(reward), True, False, {"solved": info["prev_level_complete"]}
        return self._look(), float(reward), False, False, {}

    def render(self) -> Any:
        """A large picture, if it was made to give them."""
        return self._game.get_info()[0].get("rgb") if self._game else None

    def state(self) -> bytes:
        """The game's own state."""
        found: bytes = self._game.get_state()[0]
        return found

    def set_state(self, state: bytes) -> None:
        """Go back to one."""
        if self._game is None:
            self._begin(0)
        self._game.set_state([state])
        self._look()

    def close(self) -> None:
        """Let go of the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _begin(self, seed: int) -> None:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # the old Gym's
            warnings.simplefilter("ignore")
            from procgen import ProcgenGym3Env
        self.close()
        self._game = ProcgenGym3Env(num=1, num_threads=0, rand_seed=seed, **self._options)
        self._first = True

    def _look(self) -> NDArray[np.uint8]:
        _, seen, (self._first,) = self._game.observe()
        self._seen = seen["rgb"][0].copy()
        return self._seen


RECIPE = Recipe(
    prefix="procgen:",
    summary="Procgen: sixteen games of levels made by chance (coinrun, starpilot, ...)",
    package="procgen",
    extra="procgen",
    make=Level,
    names=lambda: GAMES,
    also="pip install --no-deps gym3 procgen2",
)
