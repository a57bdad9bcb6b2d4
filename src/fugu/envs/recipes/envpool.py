"""EnvPool: other people's environments in C++, stepped by its threads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.batch_env import BatchEnv, Moves
from fugu.envs.recipes.recipe import Recipe


class PoolBatch(BatchEnv):
    """A pool; new seeds make a new one, since it takes them only then."""

    def __init__(self, name: str, num_envs: int, threads: int, options: dict[str, Any]) -> None:
        import envpool

        self._pool: Any = None
        self._make = envpool.make_gymnasium
        self._name, self._options = name, {**options, "num_threads": threads}
        with warnings.catch_warnings():  # of bounds that are rounded
            warnings.simplefilter("ignore")
            spec = envpool.make_spec(name, **options)
            seen, actions = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if spec.config.max_num_players > 1:
            raise UsageError(f"envpool: given {name!r}, a game of several; allowed: one agent.")
        super().__init__(num_envs, seen, actions)

    def begin(self, seeds: Sequence[int | None]) -> Any:
        """A new pool."""
        each = [(fresh_seed() if seed is None else seed) % (1 << 31) for seed in seeds]
        self.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = self._make(self._name, num_envs=self.num_envs, seed=each, **self._options)
        return self._pool.reset()[0]

    def advance(self, actions: Any) -> Moves:
        """Step all, and reset those whose episode ended, which the pool would do a step later."""
        seen, rewards, terminations, truncations, _ = self._pool.step(actions)
        ended = terminations | truncations
        if not ended.any():
            return Moves(seen, rewards, terminations, truncations)
        first, info = self._pool.reset(np.flatnonzero(ended).astype(np.int32))
        shown = replaced(seen, first, info["env_id"])
        return Moves(shown, rewards, terminations, truncations, seen)

    def close(self) -> None:
        """Its threads end with it."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def replaced(whole: Any, some: Any, ids: NDArray[np.int32]) -> Any:
    """A tree of arrays, with other rows in some places.

    >>> replaced({"x": np.zeros(3)}, {"x": np.ones(1)}, np.array([1]))["x"].tolist()
    [0.0, 1.0, 0.0]
    """
    if isinstance(whole, dict):
        return {key: replaced(part, some[key], ids) for key, part in whole.items()}
    if isinstance(whole, tuple):
        return tuple(replaced(a, b, ids) for a, b in zip(whole, some, strict=True))
    found = np.array(whole)
    found[ids] = some
    return found


def batch(name: str, num_envs: int, threads: int, **kwargs: Any) -> PoolBatch:
    """Copies of an environment of EnvPool's, with its options."""
    return PoolBatch(name, num_envs, threads, kwargs)


def names() -> list[str]:
    """All that it lists."""
    import envpool

    return sorted(envpool.list_all_envs())


RECIPE = Recipe(
    prefix="envpool:",
    summary="EnvPool: Atari, MuJoCo, dm_control, ViZDoom, MiniGrid, ... in C++ threads",
    package="envpool",
    extra="envpool",
    names=names,
    batch=batch,
    draws=False,
)
