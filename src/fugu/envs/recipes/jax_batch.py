"""Environments written in JAX: copies vectorised, compiled, and kept on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from fugu.core.errors import UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.batch_env import BatchEnv, Moves

RENEWED = 8  # copies that begin anew at a time: worlds are slow to make, and shapes to compile


@dataclass(frozen=True)
class JaxGame:
    """The functions of one environment, pure and for one copy.

    Attributes:
        reset: Called with a key: the observation and the state.
        step: Called with a key, the state and an action: the observation, the state, the reward,
            whether it terminated and whether it was truncated, and a dict of numbers that tell of
            an episode that ended. It does not begin anew.
        observation_space: Of a copy.
        action_space: Of a copy.
    """

    reset: Callable[..., Any]
    step: Callable[..., Any]
    observation_space: Space[Any]
    action_space: Space[Any]

    @classmethod
    def of(cls, env: Any, params: Any, step: Callable[..., Any]) -> JaxGame:
        """An environment with gymnax's methods; only what it steps with differs by the package."""
        seen = as_gymnasium(env.observation_space(params))
        actions = as_gymnasium(env.action_space(params))
        return cls(lambda key: env.reset_env(key, params), step, seen, actions)


class JaxBatch(BatchEnv):
    """Copies that one compiled function steps; only those whose episode ended begin anew."""

    def __init__(self, num_envs: int, game: JaxGame) -> None:
        import jax

        super().__init__(num_envs, game.observation_space, game.action_space)

        def step(keys: Any, state: Any, actions: Any) -> Any:
            pairs = jax.vmap(jax.random.split)(keys)
            return pairs[:, 0], *jax.vmap(game.step)(pairs[:, 1], state, actions)

        def renew(keys: Any, state: Any, seen: Any, ids: Any) -> Any:
            pairs = jax.vmap(jax.random.split)(keys[ids])
            first, fresh = jax.vmap(game.reset)(pairs[:, 1])
            put = (keys, state, seen), (pairs[:, 0], fresh, first)
            return jax.tree.map(lambda whole, some: whole.at[ids].set(some), *put)

        self._jax, self._step, self._renew = jax, jax.jit(step), jax.jit(renew)
        self._keys_of = jax.jit(jax.vmap(jax.random.PRNGKey))
        seen, state = jax.eval_shape(game.reset, jax.random.PRNGKey(0))
        self._blank = jax.tree.map(self._zeros, (state, seen))
        self._keys = self._state = self._seen = None
        self.begin([0] * num_envs)  # compile now, not within the time that a step may take
        self.advance(np.stack([game.action_space.sample()] * num_envs))

    def begin(self, seeds: Sequence[int | None]) -> Any:
        """New worlds."""
        each = [fresh_seed() if seed is None else seed for seed in seeds]
        self._keys = self._keys_of(np.array([seed % (1 << 32) for seed in each], np.uint32))
        self._state, self._seen = self._blank
        return self._begin_anew(np.arange(self.num_envs))

    def advance(self, actions: Any) -> Moves:
        """Step all on the device, then read what they see."""
        moved = self._step(self._keys, self._state, actions)
        self._keys, self._seen, self._state, *rest, told = moved
        rewards, terminations, truncations = (np.asarray(each) for each in rest)
        ended = np.flatnonzero(terminations | truncations)
        if not len(ended):
            return Moves(self._look(), rewards, terminations, truncations)
        final, told = self._look(), {key: np.asarray(values) for key, values in told.items()}
        infos = {i: {key: float(values[i]) for key, values in told.items()} for i in ended.tolist()}
        seen = self._begin_anew(ended)
        return Moves(seen, rewards, terminations, truncations, final, infos)

    def _begin_anew(self, ids: Any) -> Any:
        for first in range(0, len(ids), RENEWED):
            some = np.resize(ids[first : first + RENEWED], RENEWED)  # again, if they are fewer
            self._keys, self._state, self._seen = self._renew(
                self._keys, self._state, self._seen, some
            )
        return self._look()

    def _look(self) -> Any:
        return self._jax.tree.map(np.asarray, self._seen)

    def _zeros(self, each: Any) -> Any:
        return self._jax.numpy.zeros((self.num_envs, *each.shape), each.dtype)


def as_gymnasium(space: Any) -> Space[Any]:
    """A space of gymnax or Craftax as Gymnasium has it."""
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        low, high = np.asarray(space.low), np.asarray(space.high)
        dtype = np.dtype(np.asarray(np.zeros(0, space.dtype)).dtype)
        return spaces.Box(
            np.broadcast_to(low, space.shape).astype(dtype),
            np.broadcast_to(high, space.shape).astype(dtype),
            dtype=dtype.type,
        )
    raise UsageError(f"space: given {space}; allowed: a Discrete or a Box.")
