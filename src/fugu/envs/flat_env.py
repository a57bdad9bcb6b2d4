"""Flat rows for scripts that know Gymnasium's environments and one array."""

from __future__ import annotations

from typing import Any

import gymnasium
from numpy.typing import NDArray

from fugu.spaces import Layout
from fugu.spaces.layout import flat_space


class FlatEnv(gymnasium.ObservationWrapper[NDArray[Any], Any, Any]):
    """A Gymnasium environment that shows flat rows; all else is as it was, restarts too.

    Attributes:
        observation_layout: How its observations stand in them.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], layout: Layout) -> None:
        super().__init__(env)
        self.observation_layout = layout
        self.observation_space = flat_space(layout)

    def observation(self, observation: Any) -> NDArray[Any]:
        """An observation as a row of its own."""
        row = self.observation_layout.zeros()
        self.observation_layout.pack(observation, row)
        return row
