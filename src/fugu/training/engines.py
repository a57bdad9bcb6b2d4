"""Which engine runs which algorithm; its module is imported when it is chosen."""

from __future__ import annotations

import importlib

import torch

from fugu.training.config import Config
from fugu.training.engine import Engine
from fugu.training.parts import Parts
from fugu.vector import Vector

ENGINES = {"ppo": "fugu.training.torch_engine:TorchEngine"}


def make_engine(cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> Engine:
    """The engine of the algorithm that the settings name."""
    module, _, name = ENGINES[cfg.algo].partition(":")
    engine: Engine = getattr(importlib.import_module(module), name)(cfg, vec, device, parts)
    return engine
