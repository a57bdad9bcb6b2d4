"""Rollouts: policies act in a vector, and what follows is recorded for learning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fugu.rollout.collector import Actor as Actor
    from fugu.rollout.collector import Collector as Collector
    from fugu.rollout.collector import EpisodeStatistics as EpisodeStatistics
    from fugu.rollout.episode_actor import EpisodeActor as EpisodeActor
    from fugu.rollout.return_normalizer import ReturnNormalizer as ReturnNormalizer

_HOMES = {
    "Actor": "fugu.rollout.collector",
    "Collector": "fugu.rollout.collector",
    "EpisodeActor": "fugu.rollout.episode_actor",
    "EpisodeStatistics": "fugu.rollout.collector",
    "ReturnNormalizer": "fugu.rollout.return_normalizer",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
