"""NetHack, MiniHack, MiniGrid with BabyAI, and Crafter."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.recipes.recipe import Recipe, ids_of, register
from fugu.envs.wrappers import SeededNetHack

# ---------------------------------------------------------------------- NetHack, MiniHack

CROP = 9  # cells on a side of the square around the hero
CHARACTERS, COLORS = 128, 16
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
            "colors": spaces.MultiDiscrete(np.full(cells, COLORS), dtype=np.uint8),
            "stats": spaces.Box(-np.inf, np.inf, stats, np.float32),
        }
        if whole_map:
            parts["map"] = spaces.Box(0, 255, (*shape, 1), np.uint8)
        self.observation_space = spaces.Dict(parts)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset, and crop the observation."""
        observation, _ = self.env.reset(**kwargs)
        return self._crop(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and crop the observation; the info of an episode's end has its success."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        last: dict[str, Any] = {}
        if terminated or truncated:
            last["success"] = float(info["end_status"] == 2)  # of StepStatus: the task is done
        return self._crop(observation), float(reward), terminated, truncated, last

    def _crop(self, seen: Any) -> dict[str, NDArray[Any]]:
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


def make_nethack(
    name: str, crop: int = CROP, whole_map: bool = True, **kwargs: Any
) -> Surroundings:
    """Make a task of NetHack, every game of which a seed decides."""
    register("nle")
    env = gymnasium.make(f"NetHack{name}", observation_keys=KEYS, **kwargs)
    seeded = env if name.startswith("Challenge") else SeededNetHack(env)  # which takes no seed
    return Surroundings(seeded, crop, whole_map=whole_map)


def nethack_names() -> list[str]:
    """Return the tasks, by the part after "NetHack"."""
    return [name for name in ids_of("nle", "NetHack") if not name.startswith("-")]


def make_minihack(
    name: str, crop: int = CROP, whole_map: bool = False, **kwargs: Any
) -> Surroundings:
    """Make a task of MiniHack; most fit into the cells around the hero."""
    register("minihack")
    env = gymnasium.make(f"MiniHack-{name}", observation_keys=KEYS, **kwargs)
    return Surroundings(SeededNetHack(env), crop, whole_map=whole_map)


# ---------------------------------------------------------------------- MiniGrid, BabyAI

KINDS = (11, 6, 4)  # of objects, colors, and states or directions of a cell
MISSION = 128  # characters


class MiniGridCells(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Cells as categories, the direction, and, if asked for, the mission as a text."""

    def __init__(self, env: gymnasium.Env[Any, Any], *, mission: bool) -> None:
        super().__init__(env)
        seen = env.observation_space
        assert isinstance(seen, spaces.Dict)
        height, width, _ = seen["image"].shape or ()
        kinds = np.broadcast_to(KINDS, (height, width, len(KINDS)))
        self._parts: dict[str, spaces.Space[Any]] = {
            "image": spaces.MultiDiscrete(kinds, dtype=np.uint8),
            "direction": spaces.Discrete(4),
        }
        if mission:
            self._parts["mission"] = spaces.Text(
                MISSION, min_length=0, charset=frozenset(map(chr, range(32, 127)))
            )
        self.observation_space = spaces.Dict(self._parts)

    def observation(self, observation: Any) -> Any:
        """Return the parts that are asked for."""
        return {key: observation[key] for key in self._parts}


def make_minigrid(name: str, mission: bool = False, **kwargs: Any) -> MiniGridCells:
    """Make a MiniGrid or BabyAI environment; BabyAI's have missions, which must be seen."""
    register("minigrid")
    babyai = name.startswith("BabyAI-")
    env = gymnasium.make(name if babyai else f"MiniGrid-{name}", **kwargs)
    return MiniGridCells(env, mission=mission or babyai)


def minigrid_names() -> list[str]:
    """Return MiniGrid's names by the part after "MiniGrid-", BabyAI's in full."""
    babyai = [f"BabyAI-{name}" for name in ids_of("minigrid", "BabyAI-")]
    return ids_of("minigrid", "MiniGrid-") + babyai


def minigrid_alias(env: str) -> str | None:
    """Recognize MiniGrid's and BabyAI's ids, whether the package is imported or not."""
    if env.startswith("BabyAI-"):
        return env
    return env.removeprefix("MiniGrid-") if env.startswith("MiniGrid-") else None


# ---------------------------------------------------------------------- Crafter


class OrderedSet(dict[Any, None]):
    """A set that iterates in the order of insertion."""

    def add(self, item: Any) -> None:
        """Insert an item."""
        self[item] = None

    def remove(self, item: Any) -> None:
        """Remove an item."""
        del self[item]


class CrafterEnv(gymnasium.Env[Any, Any]):
    """Crafter with Gymnasium's methods, seeds that decide everything, and ends told apart.

    The info of an episode's end has its achievements.
    """

    def __init__(self, reward: bool = True, size: int = 64, render_mode: str | None = None) -> None:
        import crafter

        self._game = crafter.Env(size=(size, size), reward=reward)
        self._world = self._game._world
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self._game.action_names))

        class OrderedWorld(type(self._world)):  # type: ignore[misc]
            """A world with ordered creatures; the order of a set differs from run to run."""

            def reset(self, seed: int | None = None) -> None:
                super().reset(seed)
                self._chunks: Any = defaultdict(OrderedSet)

        self._world.__class__ = OrderedWorld

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Make a new world."""
        super().reset(seed=seed)
        self._game._seed = int(self.np_random.integers(2**31 - 1))
        self._game._episode = 0
        return self._game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; death terminates, the 10,000th step truncates."""
        seen, reward, done, info = self._game.step(int(action))
        dead, last = info["discount"] == 0.0, {}
        if done:
            counts = info["achievements"].items()
            last = {"achievements": {key: float(count > 0) for key, count in counts}}
        return seen, float(reward), dead, bool(done) and not dead, last

    def render(self) -> Any:
        """Return a picture of 512 x 512 pixels."""
        return self._game.render(np.array([512, 512]))


def make_crafter(name: str, **kwargs: Any) -> CrafterEnv:
    """Make Crafter with or without rewards."""
    return CrafterEnv(reward=name == "reward", **kwargs)


RECIPES = (
    Recipe(
        prefix="nethack:",
        summary="NetHack: the whole game, by tasks (Score, Staircase, Gold, ...)",
        package="nle",
        extra="nethack",
        make=make_nethack,
        draws=False,
        names=nethack_names,
        default="Score",
        toml="nethack.toml",
    ),
    Recipe(
        prefix="minihack:",
        summary="MiniHack: rooms, mazes, rivers and skills in NetHack's world",
        package="minihack",
        extra="nethack",
        make=make_minihack,
        draws=False,
        names=partial(ids_of, "minihack", "MiniHack-"),
        toml="minihack.toml",
    ),
    Recipe(
        prefix="minigrid:",
        summary="MiniGrid and BabyAI: rooms of cells, keys, doors and goals",
        package="minigrid",
        extra="minigrid",
        make=make_minigrid,
        names=minigrid_names,
        alias=minigrid_alias,
        toml="minigrid.toml",
    ),
    Recipe(
        prefix="crafter:",
        summary="Crafter: gather, build and survive; 22 achievements",
        package="crafter",
        extra="crafter",
        make=make_crafter,
        names=lambda: ["noreward", "reward"],
        default="reward",
        toml="crafter.toml",
    ),
)
