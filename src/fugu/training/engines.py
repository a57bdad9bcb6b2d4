"""Which engine runs which algorithm; its module is imported when it is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
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
    """Return the engine of the algorithm that the settings name."""
    check_spaces(vec.groups)
    place = LEAGUE if cfg.league.enabled else ENGINES[cfg.algo]
    module, _, name = place.partition(":")
    engine: Engine = getattr(importlib.import_module(module), name)(cfg, vec, device, parts)
    return engine


def check_spaces(groups: Sequence[AgentGroup]) -> None:
    """Raise `UsageError` if the observations or the actions of a group hold no number at all."""
    for group in groups:
        spaces = {"observation": group.observation_layout, "action": group.action_layout}
        for name, layout in spaces.items():
            if not layout.size:
                remedy = "Show a constant instead" if name == "observation" else "Add an action"
                raise UsageError(
                    f"{name} space of {group.name!r}: given {layout.space}, which holds no number; "
                    f"allowed: spaces with one number or more. {remedy}, such as "
                    f"{'Box(0, 1, (1,))' if name == 'observation' else 'Discrete(1)'}."
                )
