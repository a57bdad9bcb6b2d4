"""What the recipes of PettingZoo's families share."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from fugu.core.errors import MissingExtraError
from fugu.envs.recipes.pixels import FrameStack, Shrink


def make_one(path: str, extra: str, **kwargs: Any) -> Any:
    """The environment of a module, all agents at once where it can, else turn by turn."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or path, extra) from error
    made: Callable[..., Any] = getattr(module, "parallel_env", None) or module.env
    return made(**kwargs)


def modules_of(package: str) -> list[str]:
    """The environments of a package, found without importing them."""
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):
        return []
    folders = spec.submodule_search_locations if spec else None
    return [m.name for m in pkgutil.iter_modules(folders or ()) if re.search(r"_v\d+$", m.name)]


def in_small(env: Any, stack: int, size: int, skip: int, extra: str) -> Any:
    """A parallel environment of pictures: small and grey, the last ones in a row, for every agent.

    All act `skip` times over, and what they earn is summed, until one of them is done.
    """
    from pettingzoo.utils import BaseParallelWrapper

    class SeenSmall(BaseParallelWrapper):  # type: ignore[misc]
        """Each agent's last pictures, the newest last."""

        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            agents, sides = inner.possible_agents, (size, size)
            self._shrinks = {
                agent: Shrink(inner.observation_space(agent), sides, grey=True, extra=extra)
                for agent in agents
            }
            self._frames = {agent: FrameStack(stack, sides) for agent in agents}
            self._space = spaces.Box(0, 255, (stack, *sides), np.uint8)

        def observation_space(self, agent: Any) -> spaces.Box:
            """The same for all."""
            return self._space

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            """Reset; the first picture stands in all places."""
            seen, infos = self.env.reset(seed=seed, options=options)
            return {a: self._frames[a].fill(self._shrinks[a](p)) for a, p in seen.items()}, infos

        def step(self, actions: Any) -> Any:
            """Step; one more picture for each."""
            earned: dict[Any, float] = dict.fromkeys(actions, 0.0)
            for _ in range(skip):
                seen, rewards, terminations, truncations, infos = self.env.step(actions)
                earned = {agent: had + rewards.get(agent, 0.0) for agent, had in earned.items()}
                if any(terminations.values()) or any(truncations.values()):
                    break
            pictures = {a: self._frames[a].push(self._shrinks[a](p)) for a, p in seen.items()}
            return pictures, earned, terminations, truncations, infos

    return SeenSmall(env)
