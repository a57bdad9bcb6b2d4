"""Expedition: a small environment with a richly structured observation, for tours and tests."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SIZE = 11  # the island is SIZE x SIZE
BAG = 4  # most things a walker carries
TERRAIN = "~.^*"  # sea, sand, hill, treasure
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


class Expedition(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """Walk an island, dig where treasure lies, mind the water.

    The observation nests dicts, tuples, images, numbers, text and a sequence of variable length;
    the action mixes a direction, a switch and a continuous effort.
    """

    def __init__(self, length: int = 100) -> None:
        self.observation_space = spaces.Dict(
            map=spaces.Box(0, len(TERRAIN) - 1, (SIZE, SIZE), np.uint8),
            walker=spaces.Dict(
                place=spaces.MultiDiscrete([SIZE, SIZE]),
                strength=spaces.Box(0.0, 1.0, (), np.float32),
                bag=spaces.Sequence(spaces.Box(0.0, 1.0, (2,), np.float32)),
            ),
            sky=spaces.Tuple((spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (2,), np.float64))),
            diary=spaces.Text(24, charset="abcdefghijklmnopqrstuvwxyz .!"),
        )
        self.action_space = spaces.Dict(
            direction=spaces.Discrete(len(MOVES)),
            dig=spaces.MultiBinary(1),
            effort=spaces.Box(-1.0, 1.0, (1,), np.float32),
        )
        self._length = length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A new island."""
        super().reset(seed=seed)
        inner = self.np_random.choice([1, 1, 1, 2, 3], (SIZE - 2, SIZE - 2))
        self._map: NDArray[np.uint8] = np.pad(inner, 1).astype(np.uint8)
        self._place = np.array([SIZE // 2, SIZE // 2])
        self._strength, self._steps = 1.0, 0
        self._bag: list[NDArray[np.float32]] = []
        return self._observe("ashore."), {}

    def step(
        self, action: dict[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Walk, then dig if asked to."""
        self._steps += 1
        self._place = np.clip(self._place + MOVES[int(action["direction"])], 0, SIZE - 1)
        effort = (float(action["effort"][0]) + 1) / 2
        self._strength = max(0.0, self._strength - 0.02 * effort)
        found = bool(action["dig"][0]) and self._here() == "*" and len(self._bag) < BAG
        if found:
            self._map[tuple(self._place)] = 1
            self._bag.append(np.array([effort, self._strength], np.float32))
        drowned = self._here() == "~"
        diary = "washed away!" if drowned else "treasure!" if found else "walking on."
        reward = float(found) - float(drowned)
        truncated = self._steps >= self._length
        return self._observe(diary), reward, drowned, truncated, {"treasures": len(self._bag)}

    def _here(self) -> str:
        return TERRAIN[self._map[tuple(self._place)]]

    def _observe(self, diary: str) -> dict[str, Any]:
        return {
            "map": self._map.copy(),
            "walker": {
                "place": self._place.copy(),
                "strength": np.array(self._strength, np.float32),
                "bag": tuple(self._bag),
            },
            "sky": (int(self.np_random.integers(3)), self.np_random.normal(size=2)),
            "diary": diary,
        }
