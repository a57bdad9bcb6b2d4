"""MiniGrid and BabyAI: rooms of cells, seen from the agent's place."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import ids_of, register

KINDS = (11, 6, 4)  # of objects, colours, and states or directions of a cell
MISSION = 128  # characters


class Cells(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Cells as categories, the direction, and, if asked for, the mission as a text."""

    def __init__(self, env: gymnasium.Env[Any, Any], *, mission: bool) -> None:
        super().__init__(env)
        seen = env.observation_space
        assert isinstance(seen, spaces.Dict)
        height, width, _ = seen["image"].shape or ()
        kinds = np.broadcast_to(KINDS, (height, width, len(KINDS)))
        parts: dict[str, spaces.Space[Any]] = {
            "image": spaces.MultiDiscrete(kinds, dtype=np.uint8),
            "direction": spaces.Discrete(4),
        }
        if mission:
            parts["mission"] = spaces.Text(
                MISSION, min_length=0, charset=frozenset(map(chr, range(32, 127)))
            )
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation: Any) -> Any:
        """Without what is not asked for."""
        return {key: observation[key] for key in self.observation_space.spaces}  # type: ignore[attr-defined]


def make(name: str, mission: bool = False, **kwargs: Any) -> Cells:
    """A MiniGrid environment; BabyAI's name missions, which must be seen."""
    register("minigrid")
    babyai = name.startswith("BabyAI-")
    env = gymnasium.make(name if babyai else f"MiniGrid-{name}", **kwargs)
    return Cells(env, mission=mission or babyai)


def names() -> list[str]:
    """MiniGrid's by what follows "MiniGrid-", BabyAI's in full."""
    rooms, sentences = ids_of("minigrid", "MiniGrid-"), ids_of("minigrid", "BabyAI-")
    return [*rooms(), *(f"BabyAI-{name}" for name in sentences())]


def alias(env: str) -> str | None:
    """Recognize MiniGrid's and BabyAI's ids, whether the package is imported or not."""
    if env.startswith("BabyAI-"):
        return env
    return env.removeprefix("MiniGrid-") if env.startswith("MiniGrid-") else None


RECIPE = Recipe(
    prefix="minigrid:",
    summary="MiniGrid and BabyAI: rooms of cells, keys, doors and goals",
    package="minigrid",
    extra="minigrid",
    make=make,
    names=names,
    alias=alias,
)
