"""PufferLib's wrappers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import ClipAction as ClipAction
from numpy.typing import NDArray

from fugu.core.errors import UsageError


def unroll_nested_dict(d: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a dict, and those of dicts in it as "outer/inner".

    >>> dict(unroll_nested_dict({"a": 1, "b": {"c": 2}}))
    {'a': 1, 'b/c': 2}
    """
    for key, value in d.items():
        if isinstance(value, Mapping):
            for inner, found in unroll_nested_dict(value):
                yield f"{key}/{inner}", found
        else:
            yield key, value


class Totals:
    """Sums of an episode's rewards and of every entry of its infos; what has no sum is left out."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {"episode_return": 0, "episode_length": 0}
        self._left_out: set[str] = set()

    def add(self, reward: Any, info: Mapping[str, Any]) -> None:
        """One step."""
        for key, value in unroll_nested_dict(info):
            if isinstance(value, np.integer):
                value = int(value)  # sums of small types would overflow
            try:
                self._sums[key] = self._sums.get(key, 0) + value
            except (TypeError, ValueError):
                self._left_out.add(key)
        self._sums["episode_return"] += reward
        self._sums["episode_length"] += 1

    def told(self) -> dict[str, Any]:
        """All of it."""
        return {key: value for key, value in self._sums.items() if key not in self._left_out}


class EpisodeStats(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells an episode's return, its length and the sums of its infos once, when it ends."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._totals = Totals()

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._totals = Totals()
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the info is empty but at the end."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._totals.add(reward, info)
        over = terminated or truncated
        return observation, reward, terminated, truncated, self._totals.told() if over else {}


class ResizeObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Leaves out rows and columns of pictures: of `downscale`, the first stays."""

    def __init__(self, env: gymnasium.Env[Any, Any], downscale: int = 2) -> None:
        super().__init__(env)
        self.downscale = downscale
        height, width = env.observation_space.shape or (0, 0)
        if height % downscale or width % downscale:
            raise UsageError(
                f"downscale: given {downscale} for {height} x {width}; allowed: a divisor of both."
            )
        shape = (height // downscale, width // downscale)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def reset(self, **arguments: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**arguments)
        return self._smaller(observation), info

    def step(self, action: Any) -> tuple[NDArray[Any], Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._smaller(observation), reward, terminated, truncated, info

    def _smaller(self, picture: NDArray[Any]) -> NDArray[Any]:
        return picture[:: self.downscale, :: self.downscale]


class PettingZooWrapper:
    """A wrapper of a ParallelEnv: all that it does not do itself, the environment does."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":  # what is private, and what pickle looks for
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The environment below all wrappers."""
        return self.env.unwrapped

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        more = {} if options is None else {"options": options}
        observations, infos = self.env.reset(seed=seed, **more)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return observations, rewards, terminations, truncations, infos

    def __str__(self) -> str:
        return f"{type(self).__name__}<{self.env}>"


class PettingZooTruncatedWrapper(PettingZooWrapper):
    """Gives resets an empty info for each agent."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        observations, _ = super().reset(seed, options)
        return observations, {agent: {} for agent in observations}


class MeanOverAgents(PettingZooWrapper):
    """Gives one info, of the means over the agents; what has no mean is left out."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        observations, infos = super().reset(seed, options)
        return observations, _means(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step."""
        *rest, infos = super().step(actions)
        return *rest, _means(infos)


class MultiagentEpisodeStats(PettingZooWrapper):
    """`EpisodeStats` of each agent: told once, when its episode ends."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        self._totals = {agent: Totals() for agent in self.possible_agents}
        return super().reset(seed, options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step; infos are empty but at an agent's end."""
        observations, rewards, terminations, truncations, infos = super().step(actions)
        told = {}
        for agent, info in infos.items():
            self._totals[agent].add(rewards[agent], info)
            over = terminations[agent] or truncations[agent]
            told[agent] = self._totals[agent].told() if over else {}
        return observations, rewards, terminations, truncations, told


def _means(infos: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for info in infos.values():
        for key, value in info.items():
            values.setdefault(key, []).append(value)
    found = {}
    for key, each in values.items():
        try:
            found[key] = np.mean(each)
        except (TypeError, ValueError):
            continue
    return found
