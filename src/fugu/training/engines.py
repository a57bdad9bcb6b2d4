"""Which engine runs which algorithm; its module is imported when it is chosen."""

from __future__ import annotations

import importlib

import torch

from fugu.training.config import Config
from fugu.training.engine import Engine
from fugu.training.parts import Parts, PolicyFactory
from fugu.vector import Vector

ENGINES = {
    "decision_transformer": "fugu.training.decision_transformer_engine:DecisionTransformerEngine",
    "dreamer": "fugu.training.dreamer_engine:DreamerEngine",
    "grpo": "fugu.training.grpo_engine:GRPOEngine",
    "mappo": "fugu.training.mappo_engine:MAPPOEngine",
    "ppo": "fugu.training.ppo_engine:PPOEngine",
    "safe_ppo": "fugu.training.safe_ppo_engine:SafePPOEngine",
}
LEAGUE = "fugu.league.engine:make_league_engine"
# Of algorithms whose policies are of a kind of their own.
POLICIES = {
    "dreamer": "fugu.algos.dreamer.agent:DreamerAgent",
    "decision_transformer": "fugu.policies.decision_transformer:make_decision_transformer",
}


def policy_factory(cfg: Config, parts: Parts) -> PolicyFactory:
    """What makes the policies of the algorithm that the settings name."""
    if cfg.algo not in POLICIES:
        return cfg.train.player(parts.factory(cfg.policy))
    module, _, name = POLICIES[cfg.algo].partition(":")
    factory: PolicyFactory = getattr(importlib.import_module(module), name)
    return factory


def make_engine(cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> Engine:
    """The engine of the algorithm that the settings name."""
    place = LEAGUE if cfg.league.enabled else ENGINES[cfg.algo]
    module, _, name = place.partition(":")
    engine: Engine = getattr(importlib.import_module(module), name)(cfg, vec, device, parts)
    return engine
