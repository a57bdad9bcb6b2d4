"""Pictures as policies like them: small, grey, and some of them in a row."""

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
    """The last pictures, the newest last: `[stack, height, width]`, with colours at the end."""

    def __init__(self, stack: int, shape: tuple[int, ...]) -> None:
        self.frames = np.zeros((stack, *shape), np.uint8)

    def fill(self, frame: Picture) -> Picture:
        """Begin with a picture, as if it had stood there before; a copy of all."""
        self.frames[:] = frame
        return self.frames.copy()

    def push(self, frame: Picture) -> Picture:
        """One more picture; a copy of all."""
        self.frames[:-1] = self.frames[1:]
        self.frames[-1] = frame
        return self.frames.copy()


class Shrink:
    """Makes pictures `size` pixels high and wide, by the mean of areas, and grey if asked."""

    def __init__(self, space: Space[Any], size: tuple[int, int], *, grey: bool, extra: str) -> None:
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            raise UsageError(f"pictures: given {space}; allowed: uint8 of two or three axes.")
        try:
            import cv2
        except ModuleNotFoundError as error:
            raise MissingExtraError("opencv-python-headless", extra) from error
        self._cv2: Any = cv2
        self._size = size
        colours = len(space.shape) == 3 and space.shape[-1] == 3
        self._greys = grey and colours
        self.shape = size if grey or not colours else (*size, 3)

    def __call__(self, picture: Picture) -> Picture:
        """The picture made small."""
        plain = self._cv2.cvtColor(picture, self._cv2.COLOR_RGB2GRAY) if self._greys else picture
        height, width = self._size
        small = self._cv2.resize(plain, (width, height), interpolation=self._cv2.INTER_AREA)
        found: Picture = np.asarray(small, np.uint8).reshape(self.shape)
        return found


class SeenSmall(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each action `skip` times over, the rewards summed; pictures made small and stacked.

    Args:
        env: Whose observations are pictures, or a dict with one.
        size: Height and width.
        skip: Steps of the environment for one of ours.
        stack: Pictures in an observation.
        grey: Without colours.
        key: Of the picture in a dict; the other entries stay as they are.
        extra: That brings what is needed, for the error.
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
        """Reset; the first picture stands in all places."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with(observation, self._frames.fill), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the action until the episode ends or it was taken often enough."""
        earned = 0.0
        for _ in range(self._skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            earned += float(reward)
            if terminated or truncated:
                break
        seen = self._with(observation, self._frames.push)
        return seen, earned, bool(terminated), bool(truncated), info

    def _with(self, observation: Any, put: Callable[[Picture], Picture]) -> Any:
        if not self._key:
            return put(self._shrink(observation))
        return {**observation, self._key: put(self._shrink(observation[self._key]))}
