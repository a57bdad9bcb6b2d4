"""Packages that step many copies at once: EnvPool in C++ threads, gymnax and Craftax in JAX."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.batch_env import BatchEnv, Moves
from fugu.envs.recipes.recipe import Recipe

RENEWED = 8  # JAX copies that reset at a time: worlds are slow to make, and shapes to compile


class EnvPoolBatch(BatchEnv):
    """A pool of EnvPool; new seeds make a new one, since it takes them only then."""

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
        """Make a new pool."""
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
        shown = replace_rows(seen, first, info["env_id"])
        return Moves(shown, rewards, terminations, truncations, seen)

    def close(self) -> None:
        """Close the pool and its threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def replace_rows(whole: Any, some: Any, ids: NDArray[np.int32]) -> Any:
    """Return a tree of arrays with other rows in some places.

    >>> replace_rows({"x": np.zeros(3)}, {"x": np.ones(1)}, np.array([1]))["x"].tolist()
    [0.0, 1.0, 0.0]
    """
    if isinstance(whole, dict):
        return {key: replace_rows(part, some[key], ids) for key, part in whole.items()}
    if isinstance(whole, tuple):
        return tuple(replace_rows(a, b, ids) for a, b in zip(whole, some, strict=True))
    found = np.array(whole)
    found[ids] = some
    return found


class JaxBatch(BatchEnv):
    """Copies that one compiled function steps on the device; only ended ones are reset.

    Args:
        num_envs: Copies.
        env: An environment with gymnax's methods.
        params: Its parameters.
        step: A pure function of one copy, called with a key, the state and an action. It returns
            the observation, the state, the reward, whether the episode terminated, whether it was
            truncated, and a dict of numbers for the info of an episode's end. It does not reset.
    """

    def __init__(self, num_envs: int, env: Any, params: Any, step: Callable[..., Any]) -> None:
        import jax

        seen = as_gymnasium(env.observation_space(params))
        super().__init__(num_envs, seen, as_gymnasium(env.action_space(params)))

        def reset(key: Any) -> Any:
            return env.reset_env(key, params)

        def step_all(keys: Any, state: Any, actions: Any) -> Any:
            pairs = jax.vmap(jax.random.split)(keys)
            return pairs[:, 0], *jax.vmap(step)(pairs[:, 1], state, actions)

        def renew(keys: Any, state: Any, seen: Any, ids: Any) -> Any:
            pairs = jax.vmap(jax.random.split)(keys[ids])
            first, fresh = jax.vmap(reset)(pairs[:, 1])
            put = (keys, state, seen), (pairs[:, 0], fresh, first)
            return jax.tree.map(lambda whole, some: whole.at[ids].set(some), *put)

        def zeros(each: Any) -> Any:
            return jax.numpy.zeros((num_envs, *each.shape), each.dtype)

        self._jax, self._step, self._renew = jax, jax.jit(step_all), jax.jit(renew)
        self._keys_of = jax.jit(jax.vmap(jax.random.PRNGKey))
        first, state = jax.eval_shape(reset, jax.random.PRNGKey(0))
        self._blank = jax.tree.map(zeros, (state, first))
        self._keys = self._state = self._seen = None
        self.begin([0] * num_envs)  # compile now, not within the time that a step may take
        action = self.groups[0].action_layout.space.sample()
        self.advance(np.stack([action] * num_envs))

    def begin(self, seeds: Sequence[int | None]) -> Any:
        """Reset all copies."""
        each = [fresh_seed() if seed is None else seed for seed in seeds]
        self._keys = self._keys_of(np.array([seed % (1 << 32) for seed in each], np.uint32))
        self._state, self._seen = self._blank
        return self._reset_copies(np.arange(self.num_envs))

    def advance(self, actions: Any) -> Moves:
        """Step all on the device, then read what they see."""
        moved = self._step(self._keys, self._state, actions)
        self._keys, self._seen, self._state, *rest, last = moved
        rewards, terminations, truncations = (np.asarray(each) for each in rest)
        ended = np.flatnonzero(terminations | truncations)
        if not len(ended):
            return Moves(self._observe(), rewards, terminations, truncations)
        final, last = self._observe(), {key: np.asarray(values) for key, values in last.items()}
        infos = {i: {key: float(values[i]) for key, values in last.items()} for i in ended.tolist()}
        seen = self._reset_copies(ended)
        return Moves(seen, rewards, terminations, truncations, final, infos)

    def _reset_copies(self, ids: Any) -> Any:
        for first in range(0, len(ids), RENEWED):
            some = np.resize(ids[first : first + RENEWED], RENEWED)  # again, if they are fewer
            self._keys, self._state, self._seen = self._renew(
                self._keys, self._state, self._seen, some
            )
        return self._observe()

    def _observe(self) -> Any:
        return self._jax.tree.map(np.asarray, self._seen)


def as_gymnasium(space: Any) -> Space[Any]:
    """Return a space of gymnax or Craftax as Gymnasium's."""
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        dtype = np.dtype(np.asarray(np.zeros(0, space.dtype)).dtype)
        low, high = (
            np.broadcast_to(np.asarray(bound), space.shape).astype(dtype)
            for bound in (space.low, space.high)
        )
        return spaces.Box(low, high, dtype=dtype.type)
    raise UsageError(f"space: given {space}; allowed: a Discrete or a Box.")


def batch_envpool(name: str, num_envs: int, threads: int, **kwargs: Any) -> EnvPoolBatch:
    """Make copies of an environment of EnvPool, with its options."""
    return EnvPoolBatch(name, num_envs, threads, kwargs)


def envpool_names() -> list[str]:
    """Return the names that EnvPool lists."""
    import envpool

    return sorted(envpool.list_all_envs())


def batch_gymnax(name: str, num_envs: int, threads: int, **kwargs: Any) -> JaxBatch:
    """Make copies of an environment of gymnax; arguments are those of its parameters."""
    import gymnax

    env, params = gymnax.make(name)
    params = params.replace(**kwargs)

    def step(key: Any, state: Any, action: Any) -> Any:
        seen, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return seen, state, reward, terminated, env.is_truncated(state, params), {}

    return JaxBatch(num_envs, env, params, step)


def gymnax_names() -> list[str]:
    """Return the names that gymnax registers."""
    import gymnax

    return sorted(gymnax.registered_envs)


def batch_craftax(name: str, num_envs: int, threads: int, **kwargs: Any) -> JaxBatch:
    """Make copies of a world of Craftax; arguments are those of its parameters."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(**kwargs)

    def step(key: Any, state: Any, action: Any) -> Any:
        seen, state, reward, done, info = env.step_env(key, state, action, params)
        late = (state.timestep >= params.max_timesteps) & (state.player_health > 0)
        last = {name.lower(): value for name, value in info.items() if "Achievements" in name}
        return seen, state, reward, done & ~late, done & late, last

    return JaxBatch(num_envs, env, params, step)


def craftax_names() -> list[str]:
    """Return the names of Craftax."""
    kinds = ("Classic-Pixels", "Classic-Symbolic", "Pixels", "Symbolic")
    return [f"Craftax-{kind}-v1" for kind in kinds]


RECIPES = (
    Recipe(
        prefix="envpool:",
        summary="EnvPool: Atari, MuJoCo, dm_control, ViZDoom, MiniGrid, ... in C++ threads",
        package="envpool",
        extra="envpool",
        names=envpool_names,
        batch=batch_envpool,
        draws=False,
        toml="envpool.toml",
    ),
    Recipe(
        prefix="gymnax:",
        summary="gymnax: classic control, MinAtar and bsuite in JAX, on the device",
        package="gymnax",
        extra="gymnax",
        names=gymnax_names,
        batch=batch_gymnax,
        draws=False,
        toml="gymnax.toml",
    ),
    Recipe(
        prefix="craftax:",
        summary="Craftax: worlds to survive in, written in JAX, on the device",
        package="craftax",
        extra="craftax",
        names=craftax_names,
        batch=batch_craftax,
        draws=False,
        toml="craftax.toml",
    ),
)
