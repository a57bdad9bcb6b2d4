"""PufferLib 3.0's interface on fugu's parts: a script changes its import line and nothing else.

    import fugu_pufferlib as pufferlib

Submodules and names load when they are first used; docs/migrate/pufferlib.md tells what differs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fugu_pufferlib.errors import APIUsageError as APIUsageError
    from fugu_pufferlib.errors import InvalidAgentError as InvalidAgentError
    from fugu_pufferlib.hosting import to_fugu as to_fugu
    from fugu_pufferlib.puffer_env import PufferEnv as PufferEnv
    from fugu_pufferlib.puffer_env import set_buffers as set_buffers
    from fugu_pufferlib.wrappers import ClipAction as ClipAction
    from fugu_pufferlib.wrappers import EpisodeStats as EpisodeStats
    from fugu_pufferlib.wrappers import MeanOverAgents as MeanOverAgents
    from fugu_pufferlib.wrappers import MultiagentEpisodeStats as MultiagentEpisodeStats
    from fugu_pufferlib.wrappers import (
        PettingZooTruncatedWrapper as PettingZooTruncatedWrapper,
    )
    from fugu_pufferlib.wrappers import PettingZooWrapper as PettingZooWrapper
    from fugu_pufferlib.wrappers import ResizeObservation as ResizeObservation
    from fugu_pufferlib.wrappers import unroll_nested_dict as unroll_nested_dict

__version__ = 3.0  # a number, as there

_MODULES = ("emulation", "models", "pytorch", "spaces", "vector")
_HOMES = {
    "APIUsageError": "errors",
    "InvalidAgentError": "errors",
    "to_fugu": "hosting",
    "PufferEnv": "puffer_env",
    "set_buffers": "puffer_env",
    "ClipAction": "wrappers",
    "EpisodeStats": "wrappers",
    "MeanOverAgents": "wrappers",
    "MultiagentEpisodeStats": "wrappers",
    "PettingZooTruncatedWrapper": "wrappers",
    "PettingZooWrapper": "wrappers",
    "ResizeObservation": "wrappers",
    "unroll_nested_dict": "wrappers",
}
_ELSEWHERE = {
    "pufferl": "fugu.train, fugu.evaluate and the command fugu train",
    "sweep": "the command fugu sweep",
    "ocean": "native environments: fugu envs",
    "environments": "names of environments: fugu envs, fugu.make",
    "GymToGymnasium": "shimmy, for environments of the old Gym",
    "Suppress": "contextlib.redirect_stdout",
    "silence_warnings": "warnings.catch_warnings",
}

__all__ = [*_MODULES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _ELSEWHERE:
        raise AttributeError(f"{__name__} has no {name!r}; in its place: {_ELSEWHERE[name]}")
    raise AttributeError(f"{__name__} has no {name!r}; it has {sorted(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
