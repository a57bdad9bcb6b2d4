"""Game Boy games, by PyBoy; ROMs are yours to bring."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.recipes.pixels import SeenSmall
from fugu.envs.recipes.recipe import Recipe

BUTTONS = ("", "up", "down", "left", "right", "a", "b", "start", "select")
PRESSED = 8  # frames that a button is held, of those of a step
BOOT = 400  # frames until a game has begun


class Cartridge(gymnasium.Env[Any, Any]):
    """A game: its screen in grey, one button a step.

    Args:
        rom: The file.
        reward: "package.module:function", called with the `PyBoy` after each step for a number; how
            much that grew is the reward. None: no reward.
        over: The same for whether the game is over.
        state: A file that PyBoy saved, to begin episodes from; without one, the game just begun.
        skip: Frames of a step.
        noop_max: The most steps without a button before an episode; a seed chooses how many.
        max_steps: After which an episode is cut off; 0: never.
        render_mode: "rgb_array" or nothing.
    """

    def __init__(
        self,
        rom: str | Path,
        reward: str | None = None,
        over: str | None = None,
        state: str | Path | None = None,
        skip: int = 24,
        noop_max: int = 30,
        max_steps: int = 2048,
        render_mode: str | None = None,
    ) -> None:
        import pyboy

        if not Path(rom).is_file():
            raise UsageError(f"gameboy: given {str(rom)!r}; allowed: the file of a ROM, yours.")
        if skip < PRESSED:
            raise UsageError(f"skip: given {skip}; allowed: {PRESSED} or more, as long as a press.")
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 60 / skip}
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (144, 160), np.uint8)
        self.action_space = spaces.Discrete(len(BUTTONS))
        self._worth, self._over = _function(reward), _function(over)
        self._skip, self._noop_max, self._max_steps = skip, noop_max, max_steps
        self._game = pyboy.PyBoy(str(rom), window="null", sound_emulated=False)
        self._game.set_emulation_speed(0)
        if state is None:
            self._game.tick(BOOT, False, False)
            kept = BytesIO()
            self._game.save_state(kept)
            self._start = kept.getvalue()
        else:
            self._start = Path(state).read_bytes()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin where all episodes begin, after some steps without a button."""
        super().reset(seed=seed)
        self._game.load_state(BytesIO(self._start))
        idle = int(self.np_random.integers(self._noop_max + 1))
        self._game.tick(idle * self._skip + 1, True, False)
        self._steps, self._had = 0, self._value()
        return self._screen(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Press a button for a moment, or none."""
        button = BUTTONS[int(action)]
        if button:
            self._game.button(button, PRESSED)
        self._game.tick(self._skip, True, False)
        self._steps += 1
        had, self._had = self._had, self._value()
        over = bool(self._over(self._game)) if self._over else False
        late = bool(self._max_steps) and self._steps >= self._max_steps
        return self._screen(), self._had - had, over, late and not over, {}

    def render(self) -> Any:
        """The screen, in colours."""
        return self._game.screen.ndarray[..., :3].copy()

    def close(self) -> None:
        """Let go of the game; nothing is saved beside the ROM."""
        self._game.stop(save=False)

    def _value(self) -> float:
        return float(self._worth(self._game)) if self._worth else 0.0

    def _screen(self) -> NDArray[np.uint8]:
        red: NDArray[np.uint8] = self._game.screen.ndarray[..., 0]  # of a grey screen, any colour
        return red.copy()


def _function(name: str | None) -> Callable[[Any], Any] | None:
    """What "package.module:function" names."""
    if name is None:
        return None
    module, colon, title = name.partition(":")
    if not colon:
        raise UsageError(f"gameboy: given {name!r}; allowed: package.module:function.")
    found: Callable[[Any], Any] = getattr(importlib.import_module(module), title)
    return found


def make(name: str, stack: int = 3, **kwargs: Any) -> SeenSmall:
    """A game by the path of its ROM, seen at half its size; see `Cartridge`."""
    return SeenSmall(Cartridge(name, **kwargs), (72, 80), stack=stack, extra="gameboy")


RECIPE = Recipe(
    prefix="gameboy:",
    summary="Game Boy: gameboy:path/to/your.gb, with a reward of yours",
    package="pyboy",
    extra="gameboy",
    make=make,
)
