"""Craftax: Crafter and its larger sister, written in JAX."""

from __future__ import annotations

from typing import Any

from fugu.envs.recipes.jax_batch import JaxBatch, JaxGame
from fugu.envs.recipes.recipe import Recipe

NAMES = [
    "Craftax-Classic-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Symbolic-v1",
]


def batch(name: str, num_envs: int, threads: int, **kwargs: Any) -> JaxBatch:
    """Copies of a world; arguments are those of its parameters."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(**kwargs)

    def step(key: Any, state: Any, action: Any) -> Any:
        seen, state, reward, done, info = env.step_env(key, state, action, params)
        late = (state.timestep >= params.max_timesteps) & (state.player_health > 0)
        told = {name.lower(): value for name, value in info.items() if "Achievements" in name}
        return seen, state, reward, done & ~late, done & late, told

    return JaxBatch(num_envs, JaxGame.of(env, params, step))


RECIPE = Recipe(
    prefix="craftax:",
    summary="Craftax: worlds to survive in, written in JAX, on the device",
    package="craftax",
    extra="craftax",
    names=lambda: NAMES,
    batch=batch,
    draws=False,
)
