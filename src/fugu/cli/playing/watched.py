"""A game that a run's policies play and a person watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fugu.envs.contract import Env
from fugu.envs.native_env import NativeEnv, native_library
from fugu.envs.picture import Picture, check_picture, resize
from fugu.envs.recipes import find_recipe
from fugu.envs.resolve import resolve
from fugu.vector import Batch, Vector, make


class WatchedGame:
    """One copy of any environment, whose agents act by policies.

    Attributes:
        name: Of the run.
        names: Of keys that move agents: there are none.
        waits: For keys: never.
        steps: That were made.
        size: Width and height of its picture.
        rate: Steps a second.
    """

    names: tuple[str, ...] = ()
    waits = False
    _batch: Batch
    _score: float  # of this episode
    _length: int

    def __init__(
        self, name: str, vec: Vector, players: Callable[[Vector], Callable[[Batch], Any]], seed: int
    ) -> None:
        self.name, self._vec, self._make_players = name, vec, players
        self.steps, self._seed = 0, seed
        self._returns: list[float] = []
        self._begin()
        (first,) = vec.apply(_picture, None)
        (told,) = vec.apply(_rate)
        self.size: tuple[float, float] = (first.shape[1], first.shape[0])
        self.rate = float(told or 0)

    def cell_at(self, x: float, y: float) -> None:
        """Nobody points here."""

    def reset(self) -> None:
        """Begin anew, with other chance."""
        self._seed += 1
        self._begin()

    def step(self, held: Iterable[str]) -> bool:
        """Make a step."""
        self._vec.send(self._players(self._batch))
        self._batch = self._vec.recv()
        self.steps += 1
        self._length += 1
        rows = self._batch.groups[0].rows
        self._score += float(np.round(rows.rewards[0], 6))
        for told in self._batch.infos.get(0, ()):
            if "episode_return" in told:
                self._returns.append(float(told["episode_return"]))
        if rows.terminations[0] or rows.truncations[0]:  # other agents may end before or after
            self._score, self._length = 0.0, 0
        return True

    def status(self) -> str:
        """How it goes, in a line."""
        parts = [self.name, f"step {self._length}", f"return {self._score:g}"]
        if self._returns:
            mean = sum(self._returns) / len(self._returns)
            parts.append(f"mean of {len(self._returns)} episodes {mean:.4g}")
        return "   ".join(parts)

    def picture(self, size: tuple[int, int]) -> Picture:
        """A picture of now, of this width and height."""
        (found,) = self._vec.apply(_picture, size)
        return fit(check_picture(found), size)

    def _begin(self) -> None:
        self._players = self._make_players(self._vec)
        self._vec.async_reset(self._seed)
        self._batch = self._vec.recv()
        self._score, self._length = 0.0, 0


def watched_vector(env: str, kwargs: Mapping[str, Any]) -> Vector:
    """One copy of an environment that gives pictures."""
    if native_library(resolve(env, **kwargs)):
        return make(env, 1, backend="native", env_kwargs=kwargs)
    recipe = find_recipe(env)
    draws = recipe.draws if recipe else ":" not in env  # a factory has arguments of its own
    options = {"render_mode": "rgb_array", **kwargs} if draws else kwargs
    return make(env, 1, backend="serial", env_kwargs=options)


def fit(picture: Picture, size: tuple[int, int]) -> Picture:
    """The picture as large as it can be inside a size, on black.

    >>> fit(np.full((2, 2, 3), 255, np.uint8), (4, 2))[0, :, 0].tolist()
    [0, 255, 255, 0]
    """
    height, width, _ = picture.shape
    if (width, height) == size:
        return picture
    scale = min(size[0] / width, size[1] / height)
    wide, high = max(1, round(width * scale)), max(1, round(height * scale))
    out = np.zeros((size[1], size[0], 3), np.uint8)
    left, top = (size[0] - wide) // 2, (size[1] - high) // 2
    out[top : top + high, left : left + wide] = resize(picture, wide, high)
    return out


def _picture(env: Env, size: tuple[int, int] | None) -> Any:
    return env.render(size) if isinstance(env, NativeEnv) else env.render()


def _rate(env: Env) -> float | None:
    if isinstance(env, NativeEnv):
        return env.spec.frames
    found: dict[str, Any] = getattr(getattr(env, "source", env), "metadata", None) or {}
    return found.get("render_fps")
