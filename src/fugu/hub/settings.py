"""Which settings of a run are shared, and which of them would make somebody else's machine act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fugu.envs import recipes, suite
from fugu.envs.resolve import CODING
from fugu.hub.contents import CONFIG, RefusedError

# Paths, addresses and accounts of one machine: they are not shared, and not taken.
LOCAL = {
    "run": ("folder", "name", "record_data", "trajectories", "tensorboard", "wandb"),
    "vec": ("ray_address", "ray_cpus", "ray_resources", "ray_timeout"),
    "league": ("database",),
    "train": ("data",),
}
_DATA = ("pettingzoo", "velocity")  # prefixes of names that bring no code of their own


def shared_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what concerns one machine only.

    >>> shared_config({"seed": 1, "run": {"name": "a", "keep": 3}})
    {'seed': 1, 'run': {'keep': 3}}
    """
    return {
        section: {key: inner for key, inner in value.items() if key not in LOCAL.get(section, ())}
        if isinstance(value, Mapping)
        else value
        for section, value in config.items()
    }


def check_config(place: str, config: Mapping[str, Any]) -> None:
    """Raise RefusedError for settings that are this machine's to say."""
    for section, given in config.items():
        if _plain(section) != section:  # a second name for what another check looks at
            raise RefusedError(place, CONFIG, f"given {section!r}; allowed: {_plain(section)!r}")
        for key in given if isinstance(given, Mapping) else ():
            if _plain(key) in LOCAL.get(section, ()):
                reason = f"given {section}.{key}, which is for each machine to say; allowed: none"
                raise RefusedError(place, CONFIG, reason)


def check_env(place: str, config: Mapping[str, Any]) -> None:
    """Raise RefusedError for an environment whose name is that of a program."""
    env = config.get("env", "")
    why = why_code(env) if isinstance(env, str) else "it is no name"
    if why is not None:
        raise RefusedError(
            place,
            CONFIG,
            f"given the environment {env!r} with {config.get('env_kwargs', {})!r}: {why}. "
            "If you know what that does, trust the run (--trust, trust=True)",
        )


def why_code(env: str) -> str | None:
    """Why to make an environment of that name would run a program that it chooses; None if not.

    >>> why_code("breakout"), why_code("ALE/Pong-v5"), why_code("pettingzoo:mpe/simple")
    (None, None, None)
    >>> why_code("os:system")
    "to play it is to import 'os' and call something in it"
    >>> why_code("classic_control:CartPole-v1")  # what training CartPole-v1 keeps as its name
    """
    if env.endswith(suite.SUFFIXES):
        return "to play it is to load that library"
    prefix, colon, name = env.partition(":")
    if not colon or prefix in _DATA or env in suite.ALIASES or _is_listed(env):
        return None
    if prefix == "coding":
        return None if name in CODING else "to play it is to run programs of that file"
    return f"to play it is to import {prefix!r} and call something in it"


def _is_listed(env: str) -> bool:
    """Return whether a recipe of fugu itself looks the name up in a list of plain Gymnasium ids.

    Such a name imports no more than the plain id would. Other recipes take files or functions.
    """
    recipe = recipes.find_recipe(env)
    if recipe is None or recipe.alias is None or recipe.names is None:
        return False
    return getattr(recipe.make, "__module__", "").startswith(f"{recipes.__name__}.")


def _plain(key: str) -> str:
    """A setting's name as `read_config` takes it."""
    return key.replace("-", "_").rstrip("_")
