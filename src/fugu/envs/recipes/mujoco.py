"""MuJoCo: bodies that learn to move, as Gymnasium has them."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium

from fugu.envs.recipes.float32 import Float32
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.recipes.registered import alias_of, newest_of

log = logging.getLogger("fugu.envs")


def log_warnings() -> None:
    """Have MuJoCo's warnings in the log and not in a file, MUJOCO_LOG.TXT, of the user's folder."""
    import mujoco

    mujoco.set_mju_user_warning(_log_warning)


def _log_warning(text: str) -> None:
    old = "deprecated" in text  # of Gymnasium's models, which a user does not write
    log.log(logging.DEBUG if old else logging.WARNING, "MuJoCo: %s", text.strip())


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One of Gymnasium's, seen as float32; policies normalise it."""
    log_warnings()
    return Float32(gymnasium.make(name, **kwargs))


RECIPE = Recipe(
    prefix="mujoco:",
    summary="MuJoCo: Hopper, HalfCheetah, Walker2d, Ant, Humanoid, ...",
    package="mujoco",
    extra="mujoco",
    make=make,
    names=newest_of("gymnasium", "gymnasium.envs.mujoco"),
    alias=alias_of("gymnasium.envs.mujoco"),
)
