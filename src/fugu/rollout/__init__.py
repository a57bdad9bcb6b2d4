"""Rollouts: policies act in a vector, and what follows is recorded for learning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fugu.rollout.actor import Actor as Actor
    from fugu.rollout.actor import EpisodeActor as EpisodeActor
    from fugu.rollout.actor import ReturnNormalizer as ReturnNormalizer
    from fugu.rollout.collector import Collector as Collector
    from fugu.rollout.collector import EpisodeStatistics as EpisodeStatistics

_HOMES = {
    "Actor": "fugu.rollout.actor",
    "Collector": "fugu.rollout.collector",
    "EpisodeActor": "fugu.rollout.actor",
    "EpisodeStatistics": "fugu.rollout.collector",
    "ReturnNormalizer": "fugu.rollout.actor",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
