"""Preprocessing of pictures: resized, grey, and stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError

Picture = NDArray[np.uint8]


class FrameStack:
    """The last pictures, the newest last: `[stack, height, width]`, with colors at the end."""

    def __init__(self, stack: int, shape: tuple[int, ...]) -> None:
        self.frames = np.zeros((stack, *shape), np.uint8)

    def fill(self, frame: Picture) -> Picture:
        """Fill the whole stack with a picture; return a copy of it."""
        self.frames[:] = frame
        return self.frames.copy()

    def push(self, frame: Picture) -> Picture:
        """Push one more picture; return a copy of the stack."""
        self.frames[:-1] = self.frames[1:]
        self.frames[-1] = frame
        return self.frames.copy()


class Shrink:
    """Resizes pictures to `size`, height and width, by the mean of areas; makes them grey."""

    def __init__(self, space: Space[Any], size: tuple[int, int], *, grey: bool, extra: str) -> None:
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            raise UsageError(f"pictures: given {space}; allowed: uint8 of two or three axes.")
        try:
            import cv2
        except ModuleNotFoundError as error:
            raise MissingExtraError("opencv-python-headless", extra) from error
        self._cv2: Any = cv2
        self._size = size
        colors = len(space.shape) == 3 and space.shape[-1] == 3
        self._greys = grey and colors
        self.shape = size if grey or not colors else (*size, 3)

    def __call__(self, picture: Picture) -> Picture:
        """Return the resized picture."""
        plain = self._cv2.cvtColor(picture, self._cv2.COLOR_RGB2GRAY) if self._greys else picture
        height, width = self._size
        small = self._cv2.resize(plain, (width, height), interpolation=self._cv2.INTER_AREA)
        found: Picture = np.asarray(small, np.uint8).reshape(self.shape)
        return found


class SmallPictures(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `skip` times and sums the rewards; resizes and stacks the pictures.

    Args:
        env: An environment whose observations are pictures, or dicts with one.
        size: Height and width of a picture.
        skip: Steps of the environment for one step here.
        stack: Pictures in an observation.
        grey: Drop the colors.
        key: The picture's key in a dict; the other entries stay as they are.
        extra: The extra that brings OpenCV, for the error.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        size: tuple[int, int] = (84, 84),
        *,
        skip: int = 1,
        stack: int = 4,
        grey: bool = True,
        key: str = "",
        extra: str,
    ) -> None:
        super().__init__(env)
        if min(skip, stack, *size) < 1:
            raise UsageError(f"given skip={skip}, stack={stack}, size={size}; allowed: 1 or more.")
        seen = env.observation_space
        inner = seen[key] if isinstance(seen, spaces.Dict) else seen
        self._shrink = Shrink(inner, size, grey=grey, extra=extra)
        self._frames = FrameStack(stack, self._shrink.shape)
        self._skip, self._key = skip, key if isinstance(seen, spaces.Dict) else ""
        small = spaces.Box(0, 255, (stack, *self._shrink.shape), np.uint8)
        if isinstance(seen, spaces.Dict):
            self.observation_space = spaces.Dict({**seen.spaces, key: small})
        else:
            self.observation_space = small

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; the first picture fills the stack."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._replace(observation, self._frames.fill), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat the action until the episode ends or it was taken `skip` times."""
        total = 0.0
        for _ in range(self._skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        seen = self._replace(observation, self._frames.push)
        return seen, total, bool(terminated), bool(truncated), info

    def _replace(self, observation: Any, put: Callable[[Picture], Picture]) -> Any:
        if not self._key:
            return put(self._shrink(observation))
        return {**observation, self._key: put(self._shrink(observation[self._key]))}
