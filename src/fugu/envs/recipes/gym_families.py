"""Families of Gymnasium: classic control, toy text, Box2D, MuJoCo; the DeepMind Control Suite."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.wrappers import FlattenObservation

from fugu.envs.recipes.pixels import SmallPictures
from fugu.envs.recipes.recipe import Recipe, ids_of, register
from fugu.envs.suite import newest
from fugu.envs.wrappers import THRESHOLDS, Float32, VelocityCost

log = logging.getLogger("fugu.envs")


def newest_of(entry_point: str) -> list[str]:
    """Return the newest id of each environment of Gymnasium whose entry point begins so."""
    entries = {name: str(spec.entry_point) for name, spec in gymnasium.registry.items()}
    found = [name for name, entry in entries.items() if entry.startswith(entry_point)]
    bare = {name.rpartition("-v")[0] for name in found}
    return sorted(filter(None, (newest(name, found) for name in bare)))


def alias_of(entry_point: str, env: str) -> str | None:
    """Return the full id that `env` means if its entry point begins so, else None."""
    found = newest(env, gymnasium.registry)
    entry = str(gymnasium.registry[found].entry_point) if found else ""
    return found if entry.startswith(entry_point) else None


def make_car_racing(
    name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any
) -> SmallPictures:
    """Make CarRacing with small grey pictures; each action is repeated `skip` times."""
    env = gymnasium.make(f"CarRacing{name}", **kwargs)
    return SmallPictures(env, (size, size), skip=skip, stack=stack, extra="box2d")


def make_mujoco(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a MuJoCo environment with float32 observations."""
    _log_mujoco_warnings()
    return Float32(gymnasium.make(name, **kwargs))


def make_velocity(name: str, **kwargs: Any) -> VelocityCost:
    """Make a MuJoCo environment in `VelocityCost`."""
    _log_mujoco_warnings()
    return VelocityCost.make(name, **kwargs)


def _log_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to the log and not to MUJOCO_LOG.TXT in the working folder."""
    import mujoco

    mujoco.set_mju_user_warning(_log_warning)


def _log_warning(text: str) -> None:
    old = "deprecated" in text  # of Gymnasium's models, which a user does not write
    log.log(logging.DEBUG if old else logging.WARNING, "MuJoCo: %s", text.strip())


def make_dm_control(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a task of the suite; its observations are flattened into one array of float32."""
    register("shimmy")
    return Float32(FlattenObservation(gymnasium.make(f"dm_control/{name}", **kwargs)))


def dm_control_names() -> list[str]:
    """Return the tasks of the suite, such as cartpole-balance-v0."""
    found = ids_of("shimmy", "dm_control/")
    return [name for name in found if not name.startswith("compatibility-env")]


def velocity_names() -> list[str]:
    """Return all versions of the robots that have a threshold."""
    return sorted(name for name in gymnasium.registry if name.rpartition("-v")[0] in THRESHOLDS)


def _family(
    name: str, summary: str, package: str, extra: str, make: Callable[..., Any] = gymnasium.make
) -> Recipe:
    """Return the recipe of one of the folders of `gymnasium.envs`."""
    return Recipe(
        prefix=f"{name}:",
        summary=summary,
        package=package,
        extra=extra,
        make=make,
        names=partial(newest_of, f"gymnasium.envs.{name}"),
        alias=partial(alias_of, f"gymnasium.envs.{name}"),
        toml=f"{name}.toml",
    )


RECIPES = (
    _family(
        "classic_control",
        "classic control: CartPole, Pendulum, Acrobot, MountainCar",
        "gymnasium",
        "train",
    ),
    _family(
        "toy_text", "toy text: FrozenLake, Taxi, CliffWalking, Blackjack", "gymnasium", "train"
    ),
    _family("box2d", "Box2D: LunarLander, BipedalWalker", "Box2D", "box2d"),
    _family(
        "mujoco",
        "MuJoCo: Hopper, HalfCheetah, Walker2d, Ant, Humanoid, ...",
        "mujoco",
        "mujoco",
        make_mujoco,
    ),
    Recipe(
        prefix="box2d:CarRacing",
        summary="CarRacing: a track from above, in pixels",
        package="Box2D",
        extra="box2d",
        make=make_car_racing,
        names=partial(ids_of, "gymnasium", "CarRacing"),
        toml="car_racing.toml",
    ),
    Recipe(
        prefix="velocity:",
        summary="MuJoCo with a cost for going too fast, for Safe PPO",
        package="mujoco",
        extra="mujoco",
        make=make_velocity,
        names=velocity_names,
        toml="velocity.toml",
    ),
    Recipe(
        prefix="dm_control:",
        summary="DeepMind Control: cartpole-swingup, walker-walk, cheetah-run, ...",
        package="dm_control",
        extra="dm-control",
        make=make_dm_control,
        names=dm_control_names,
        toml="dm_control.toml",
    ),
)
