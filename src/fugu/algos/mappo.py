"""MAPPO and IPPO: PPO for teams, with critics that see more than actors do; settings, update.

Actors see what their agents see. Critics see the state of the whole environment (MAPPO), or no more
than actors do (IPPO). They foretell normalised returns: each minibatch first moves the mean and the
deviation of returns, then critics are fitted to returns in those units. What they say while agents
act is turned back into units of rewards, so that advantages are PPO's own. Steps of agents that are
dead are never stored, so no loss has to be masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from fugu.algos.ppo import PPO, Metrics, PPOConfig
from fugu.algos.ppo_loss_reference import PpoLossConfig
from fugu.algos.rows import Draw, Minibatch, Rows
from fugu.algos.value_norm import ValueNorm
from fugu.core.ranks import ALONE, Ranks
from fugu.data.segments import Segments
from fugu.policies.central import CentralPolicy


@dataclass(frozen=True)
class MAPPOConfig(PPOConfig):
    """Settings of MAPPO; those that it shares with PPO have the published values."""

    critic: Literal["central", "local"] = "central"
    """What critics see: the whole environment (MAPPO), or what their agent sees (IPPO)."""
    state: Literal["auto", "environment", "observations"] = "auto"
    """Of what a central critic sees: the environment's own state, what all its agents see, side by
    side; auto: the first where there is one."""
    own_observation: bool = True
    """Whether a central critic sees what its agent sees beside that, so that states are its own."""
    agent_ids: bool = True
    """Whether shared networks see which agent they are."""
    share_parameters: bool = True
    """One actor and one critic for all agents of a group, or one of each for every agent."""
    normalise_values: bool = True
    """Whether critics foretell returns in units of how much those vary."""
    time_limits: Literal["bootstrap", "end"] = "bootstrap"
    """Whether an episode that was cut off is worth what its last state promises, or nothing more:
    the published code takes limits for ends."""
    epochs: int = 10
    minibatches: int = 1
    value_coefficient: float = 1.0
    final_entropy_coefficient: float | None = None
    normalise_rewards: bool = False
    max_gradient_norm: float = 10.0


class MAPPO(PPO):
    """Updates the actors and critics of a group.

    Args:
        policy: To be improved.
        optimiser: Of its parameters.
        cfg: The settings.
        random: Draws the rows of minibatches.
        ranks: Who learn together.

    Attributes:
        value_norm: What returns are like.
    """

    cfg: MAPPOConfig

    def __init__(
        self,
        policy: CentralPolicy,
        optimiser: torch.optim.Optimizer,
        cfg: MAPPOConfig,
        random: np.random.Generator,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(policy, optimiser, cfg, random, ranks)
        self.value_norm = ValueNorm()
        if cfg.normalise_values:
            policy.rescale = self.value_norm.denormalise

    def update(
        self, segments: Segments, progress: float, reward_divisor: float = 1.0
    ) -> dict[str, float]:
        """Learn as PPO does."""
        if self.cfg.time_limits == "end":
            segments.final_values.fill(0.0)
        return super().update(segments, progress, reward_divisor)

    def state_dict(self) -> dict[str, Any]:
        """What is known of returns, and what PPO remembers."""
        return super().state_dict() | self.value_norm.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        super().load_state_dict(state)
        self.value_norm.load_state_dict(state)

    # ------------------------------------------------------------------ what differs from PPO

    def _step(self, data: Rows, draw: Draw, loss_cfg: PpoLossConfig) -> Metrics:
        """PPO's step, once the returns of its rows have been noted."""
        returns = data.targets(draw)
        self.value_norm.update(returns[:, data.valid[:, draw.chosen]], self._ranks)
        return super()._step(data, draw, loss_cfg)

    def _batch(self, data: Rows, draw: Draw) -> Minibatch:
        """Rows whose values and returns are in the units that critics speak in."""
        batch = super()._batch(data, draw)
        if not self.cfg.normalise_values:
            return batch
        norm = self.value_norm.normalise
        return replace(batch, old_values=norm(batch.old_values), returns=norm(batch.returns))

    def _report(self, data: Rows) -> dict[str, float]:
        """Beside PPO's: what returns are like."""
        norm = self.value_norm
        told = {"return_mean": norm.mean, "return_deviation": norm.deviation}
        return super()._report(data) | told
