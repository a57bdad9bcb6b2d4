"""Video games: Procgen, Game Boy by PyBoy, old consoles by stable-retro, Doom by ViZDoom."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from functools import partial
from io import BytesIO, StringIO
from multiprocessing.util import Finalize
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.recipes.pixels import SmallPictures
from fugu.envs.recipes.recipe import Recipe, ids_of, register

PROCGEN_GAMES = [
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
]  # fmt: skip
PROCGEN_ACTIONS = 15
BUTTONS = ("", "up", "down", "left", "right", "a", "b", "start", "select")
PRESSED = 8  # frames that a button is held, of those of a step
BOOT = 400  # frames until a game has begun
VIZDOOM = "vizdoom.gymnasium_wrapper"  # registers the ids


class ProcgenEnv(gymnasium.Env[Any, Any]):
    """One copy of a game of Procgen.

    A seed makes the game anew, so that it decides all levels that follow. The game shows the next
    level in the step that ends one: the last picture before stands for the one it never shows, and
    an end by time is not told from others.

    Args:
        game: One of `PROCGEN_GAMES`.
        num_levels: Number of levels; 0: unlimited.
        start_level: The first of them.
        distribution_mode: "easy", "hard", or another mode of the game.
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
        self.action_space = spaces.Discrete(PROCGEN_ACTIONS)
        levels = {"num_levels": num_levels, "start_level": start_level}
        mode = {"distribution_mode": distribution_mode, "render_mode": render_mode}
        self._options = {"env_name": game, **levels, **mode, **options}
        self._game: Any = None
        self._seen = np.zeros((64, 64, 3), np.uint8)
        self._action = np.zeros(1, np.int32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin the first level of a seed; without one, the next level."""
        super().reset(seed=seed)
        if seed is not None or self._game is None:
            self._begin(int(self.np_random.integers(2**31 - 1)))
        elif not self._first:  # in the middle of a level, which no game lets one leave
            raise UsageError("reset: given no seed in the middle of an episode; allowed: a seed.")
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Step; the info of a level's end says whether it was solved."""
        self._action[0] = action
        self._game.act(self._action)
        (reward,), _, (self._first,) = self._game.observe()
        if self._first:
            (info,) = self._game.get_info()
            return self._seen, float(reward), True, False, {"solved": info["prev_level_complete"]}
        return self._observe(), float(reward), False, False, {}

    def render(self) -> Any:
        """Return a large picture, if the render mode is "rgb_array"."""
        return self._game.get_info()[0].get("rgb") if self._game else None

    def state(self) -> bytes:
        """Return the game's own state."""
        found: bytes = self._game.get_state()[0]
        return found

    def set_state(self, state: bytes) -> None:
        """Restore a `state()`."""
        if self._game is None:
            self._begin(0)
        self._game.set_state([state])
        self._observe()

    def close(self) -> None:
        """Close the game."""
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

    def _observe(self) -> NDArray[np.uint8]:
        _, seen, (self._first,) = self._game.observe()
        self._seen = seen["rgb"][0].copy()
        return self._seen


class GameBoyEnv(gymnasium.Env[Any, Any]):
    """A Game Boy game: its screen in grey, one button a step.

    Args:
        rom: The file.
        reward: "package.module:function", called with the `PyBoy` after each step for a number; how
            much that grew is the reward. None: no reward.
        over: The same for whether the game is over.
        state: A file that PyBoy saved, where episodes begin; None: the beginning of the game.
        skip: Frames of a step.
        noop_max: The most steps without a button before an episode; a seed chooses how many.
        max_steps: Steps after which an episode is truncated; 0: no limit.
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
        self._score, self._over = _import_function(reward), _import_function(over)
        self._skip, self._noop_max, self._max_steps = skip, noop_max, max_steps
        self._game = pyboy.PyBoy(str(rom), window="null", sound_emulated=False)
        self._game.set_emulation_speed(0)
        if state is None:
            self._game.tick(BOOT, False, False)
            saved = BytesIO()
            self._game.save_state(saved)
            self._start = saved.getvalue()
        else:
            self._start = Path(state).read_bytes()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Load the first state, and take some steps without a button."""
        super().reset(seed=seed)
        self._game.load_state(BytesIO(self._start))
        idle = int(self.np_random.integers(self._noop_max + 1))
        self._game.tick(idle * self._skip + 1, True, False)
        self._steps, self._had = 0, self._value()
        return self._screen(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Press a button for some frames, or none."""
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
        """Return the screen in color."""
        return self._game.screen.ndarray[..., :3].copy()

    def close(self) -> None:
        """Close the game; nothing is saved beside the ROM."""
        self._game.stop(save=False)

    def _value(self) -> float:
        return float(self._score(self._game)) if self._score else 0.0

    def _screen(self) -> NDArray[np.uint8]:
        red: NDArray[np.uint8] = self._game.screen.ndarray[..., 0]  # all are equal on a grey screen
        return red.copy()


def _import_function(name: str | None) -> Callable[[Any], Any] | None:
    """Return the function that "package.module:function" names."""
    if name is None:
        return None
    module, colon, title = name.partition(":")
    if not colon:
        raise UsageError(f"gameboy: given {name!r}; allowed: package.module:function.")
    found: Callable[[Any], Any] = getattr(importlib.import_module(module), title)
    return found


class DoomInItsFolder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game of Doom in a temporary folder: Doom writes files into the working folder."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        resolved = {key: _resolve_file(value) for key, value in kwargs.items()}
        super().__init__(gymnasium.make(name, **resolved))
        self._folder = mkdtemp(prefix="fugu-vizdoom-")
        # A TemporaryDirectory would be removed by every fork of this process that ends.
        self._remove = Finalize(self, rmtree, (self._folder, True), exitpriority=0)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset; the first one starts Doom."""
        with chdir(self._folder):
            return super().reset(**kwargs)

    def close(self) -> None:
        """Close the game and remove the folder."""
        self.env.close()  # type: ignore[no-untyped-call]
        self._remove()


def _resolve_file(value: Any) -> Any:
    """Return an argument so that it means the same file from another folder, if it is a path."""
    is_file = isinstance(value, (str, Path)) and Path(value).is_file()
    return str(Path(value).resolve()) if is_file else value


def make_vizdoom(
    name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any
) -> SmallPictures:
    """Make a scenario with stacked grey pictures beside the game's own numbers."""
    import vizdoom

    register(VIZDOOM)
    screen = {
        "screen_format": vizdoom.ScreenFormat.GRAY8,
        "screen_resolution": vizdoom.ScreenResolution.RES_160X120,
    }
    env = DoomInItsFolder(f"Vizdoom{name}", frame_skip=skip, **{**screen, **kwargs})
    return SmallPictures(env, (size, size), stack=stack, key="screen", extra="vizdoom")


def make_gameboy(name: str, stack: int = 3, **kwargs: Any) -> SmallPictures:
    """Make a game by the path of its ROM, at half its size; see `GameBoyEnv`."""
    return SmallPictures(GameBoyEnv(name, **kwargs), (72, 80), stack=stack, extra="gameboy")


def make_retro(
    name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any
) -> SmallPictures:
    """Make a game with stacked grey pictures, repeated actions, and buttons as one choice."""
    import stable_retro

    actions = stable_retro.Actions.DISCRETE
    options = {"render_mode": "rgb_array", "use_restricted_actions": actions, **kwargs}
    env = stable_retro.make(name, **options)
    return SmallPictures(env, (size, size), skip=skip, stack=stack, extra="retro")


def retro_names() -> list[str]:
    """Return the games that stable-retro knows, whether their ROMs are there or not."""
    import stable_retro

    return sorted(stable_retro.data.list_games(stable_retro.data.Integrations.ALL))


RECIPES = (
    Recipe(
        prefix="procgen:",
        summary="Procgen: sixteen games of levels made by chance (coinrun, starpilot, ...)",
        package="procgen",
        extra="procgen",
        make=ProcgenEnv,
        names=lambda: PROCGEN_GAMES,
        also="pip install --no-deps gym3 procgen2",
        toml="procgen.toml",
    ),
    Recipe(
        prefix="gameboy:",
        summary="Game Boy: gameboy:path/to/your.gb, with a reward of yours",
        package="pyboy",
        extra="gameboy",
        make=make_gameboy,
        toml="gameboy.toml",
    ),
    Recipe(
        prefix="retro:",
        summary="Consoles: Airstriker-Genesis comes with it; bring other ROMs. One copy a process",
        package="stable_retro",
        extra="retro",
        make=make_retro,
        names=retro_names,
        toml="retro.toml",
    ),
    Recipe(
        prefix="vizdoom:",
        summary="ViZDoom: Basic, DefendCenter, HealthGathering, ... and Doom itself",
        package="vizdoom",
        extra="vizdoom",
        make=make_vizdoom,
        names=partial(ids_of, VIZDOOM, "Vizdoom"),
        toml="vizdoom.toml",
    ),
)
