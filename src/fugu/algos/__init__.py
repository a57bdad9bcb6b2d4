"""Algorithms, one file each, and what they share.

Importing the package imports nothing else: each name below loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fugu.algos.algorithm import Algorithm as Algorithm
    from fugu.algos.algorithm import Metrics as Metrics
    from fugu.algos.algorithm import RunContext as RunContext
    from fugu.algos.algorithm import State as State
    from fugu.algos.algorithm import Tensors as Tensors
    from fugu.algos.algorithm import as_arrays as as_arrays
    from fugu.algos.algorithm import load_environments as load_environments
    from fugu.algos.algorithm import load_network as load_network
    from fugu.algos.algorithm import load_rng as load_rng
    from fugu.algos.algorithm import save_environments as save_environments
    from fugu.algos.algorithm import save_network as save_network
    from fugu.algos.algorithm import save_rng as save_rng
    from fugu.algos.dreamer.algorithm import Dreamer as Dreamer
    from fugu.algos.dreamer.config import DreamerConfig as DreamerConfig
    from fugu.algos.grpo import GRPO as GRPO
    from fugu.algos.grpo import GRPOConfig as GRPOConfig
    from fugu.algos.mappo import MAPPO as MAPPO
    from fugu.algos.mappo import MAPPOConfig as MAPPOConfig
    from fugu.algos.ppo import PPO as PPO
    from fugu.algos.ppo import PPOConfig as PPOConfig
    from fugu.algos.ppo import ppo_loss as ppo_loss
    from fugu.algos.safe_ppo import SafePPO as SafePPO
    from fugu.algos.safe_ppo import SafePPOConfig as SafePPOConfig
    from fugu.algos.settings import Config as Config
    from fugu.algos.settings import LearningConfig as LearningConfig
    from fugu.algos.settings import VecConfig as VecConfig

_HOMES = {
    "Algorithm": "fugu.algos.algorithm",
    "Config": "fugu.algos.settings",
    "Dreamer": "fugu.algos.dreamer.algorithm",
    "DreamerConfig": "fugu.algos.dreamer.config",
    "GRPO": "fugu.algos.grpo",
    "GRPOConfig": "fugu.algos.grpo",
    "LearningConfig": "fugu.algos.settings",
    "MAPPO": "fugu.algos.mappo",
    "MAPPOConfig": "fugu.algos.mappo",
    "Metrics": "fugu.algos.algorithm",
    "PPO": "fugu.algos.ppo",
    "PPOConfig": "fugu.algos.ppo",
    "RunContext": "fugu.algos.algorithm",
    "SafePPO": "fugu.algos.safe_ppo",
    "SafePPOConfig": "fugu.algos.safe_ppo",
    "State": "fugu.algos.algorithm",
    "Tensors": "fugu.algos.algorithm",
    "VecConfig": "fugu.algos.settings",
    "as_arrays": "fugu.algos.algorithm",
    "load_environments": "fugu.algos.algorithm",
    "load_network": "fugu.algos.algorithm",
    "load_rng": "fugu.algos.algorithm",
    "ppo_loss": "fugu.algos.ppo",
    "save_environments": "fugu.algos.algorithm",
    "save_network": "fugu.algos.algorithm",
    "save_rng": "fugu.algos.algorithm",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
