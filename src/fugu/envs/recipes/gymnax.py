"""gymnax: classic control, MinAtar and bsuite, written in JAX."""

from __future__ import annotations

from typing import Any

from fugu.envs.recipes.jax_batch import JaxBatch, JaxGame
from fugu.envs.recipes.recipe import Recipe


def batch(name: str, num_envs: int, threads: int, **kwargs: Any) -> JaxBatch:
    """Copies of an environment; arguments are those of its parameters."""
    import gymnax

    env, params = gymnax.make(name)
    params = params.replace(**kwargs)

    def step(key: Any, state: Any, action: Any) -> Any:
        seen, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return seen, state, reward, terminated, env.is_truncated(state, params), {}

    return JaxBatch(num_envs, JaxGame.of(env, params, step))


def names() -> list[str]:
    """All that it registers."""
    import gymnax

    return sorted(gymnax.registered_envs)


RECIPE = Recipe(
    prefix="gymnax:",
    summary="gymnax: classic control, MinAtar and bsuite in JAX, on the device",
    package="gymnax",
    extra="gymnax",
    names=names,
    batch=batch,
    draws=False,
)
