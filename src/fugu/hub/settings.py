"""Which settings of a run are shared: all but those that concern one machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fugu.hub.contents import CONFIG, RefusedError

# Paths, addresses and accounts of one machine: they are not shared, and not taken.
LOCAL = {
    "run": ("folder", "name", "record_data", "trajectories", "tensorboard", "wandb"),
    "vec": ("ray_address", "ray_cpus", "ray_resources", "ray_timeout"),
    "league": ("database",),
    "train": ("data", "reward_model"),
}


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


def _plain(key: str) -> str:
    """A setting's name as `read_config` takes it."""
    return key.replace("-", "_").rstrip("_")
