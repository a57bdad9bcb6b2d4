"""fugu: any environment as flat memory, thousands of copies at once, policies trained on them.

Importing the package imports nothing else: each name below loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fugu.algos import GRPO as GRPO
    from fugu.algos import MAPPO as MAPPO
    from fugu.algos import PPO as PPO
    from fugu.algos import Algorithm as Algorithm
    from fugu.algos import Dreamer as Dreamer
    from fugu.algos import DreamerConfig as DreamerConfig
    from fugu.algos import GRPOConfig as GRPOConfig
    from fugu.algos import MAPPOConfig as MAPPOConfig
    from fugu.algos import PPOConfig as PPOConfig
    from fugu.algos import SafePPO as SafePPO
    from fugu.algos import SafePPOConfig as SafePPOConfig
    from fugu.envs import Buffers as Buffers
    from fugu.envs import Env as Env
    from fugu.envs import EpisodeStats as EpisodeStats
    from fugu.envs import emulate as emulate
    from fugu.envs.checking import check as check
    from fugu.export.loading import load as load
    from fugu.hub.agent import from_hub as from_hub
    from fugu.hub.push import push_to_hub as push_to_hub
    from fugu.spaces import Layout as Layout
    from fugu.training.callbacks import Callback as Callback
    from fugu.training.callbacks import Curriculum as Curriculum
    from fugu.training.callbacks import EvaluateEvery as EvaluateEvery
    from fugu.training.callbacks import RecordVideo as RecordVideo
    from fugu.training.callbacks import StopAtScore as StopAtScore
    from fugu.training.evaluate import evaluate as evaluate
    from fugu.training.session import resume as resume
    from fugu.training.session import train as train
    from fugu.vector import Vector as Vector
    from fugu.vector.make import make as make

__version__ = "0.1.0"

_HOMES = {
    "Algorithm": "fugu.algos",
    "Buffers": "fugu.envs",
    "Callback": "fugu.training.callbacks",
    "Curriculum": "fugu.training.callbacks",
    "Env": "fugu.envs",
    "Dreamer": "fugu.algos",
    "DreamerConfig": "fugu.algos",
    "EpisodeStats": "fugu.envs",
    "EvaluateEvery": "fugu.training.callbacks",
    "GRPO": "fugu.algos",
    "GRPOConfig": "fugu.algos",
    "Layout": "fugu.spaces",
    "MAPPO": "fugu.algos",
    "MAPPOConfig": "fugu.algos",
    "PPO": "fugu.algos",
    "PPOConfig": "fugu.algos",
    "RecordVideo": "fugu.training.callbacks",
    "SafePPO": "fugu.algos",
    "SafePPOConfig": "fugu.algos",
    "StopAtScore": "fugu.training.callbacks",
    "Vector": "fugu.vector",
    "check": "fugu.envs.checking",
    "emulate": "fugu.envs",
    "evaluate": "fugu.training.evaluate",
    "from_hub": "fugu.hub.agent",
    "load": "fugu.export.loading",
    "make": "fugu.vector",
    "push_to_hub": "fugu.hub.push",
    "resume": "fugu.training.session",
    "train": "fugu.training.session",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fugu' has no attribute {name!r}; it has {sorted(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
