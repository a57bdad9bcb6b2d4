"""The engine of Safe PPO: a critic for each constraint, and a learner that weighs them."""

from __future__ import annotations

import torch

from fugu.algos.learner import Learner
from fugu.algos.safe_ppo import SafePPO, SafePPOConfig
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.nets.learning import NativeLearner
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy
from fugu.training.config import Config
from fugu.training.parts import Parts
from fugu.training.ppo_engine import PPOEngine
from fugu.vector import Vector


class SafePPOEngine(PPOEngine):
    """Safe PPO for each group of agents; one without costs learns by plain PPO."""

    def __init__(self, cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> None:
        if not any(group.num_costs for group in vec.groups):
            raise UsageError(
                f"algo: given safe_ppo for {cfg.env}, which has no costs; allowed: native "
                "environments that have some, such as hazard_grid, and others whose infos hold "
                "them (--train.costs names the entries)."
            )
        super().__init__(cfg, vec, device, parts)

    def make_policy(self, group: AgentGroup, cfg: PolicyConfig, parts: Parts) -> Policy:
        """One with a critic for the reward and one for each constraint."""
        return parts.factory(cfg)(group, cfg, self.cfg.train.num_critics(group))

    def make_learner(
        self,
        group: AgentGroup,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        core: NativeLearner | None,
    ) -> Learner:
        """What improves the policy and moves the multipliers."""
        assert isinstance(self.cfg.train, SafePPOConfig)
        random, constraints = self._random[1], group.num_costs
        return SafePPO(policy, optimiser, self.cfg.train, random, constraints, self.ranks, core)
