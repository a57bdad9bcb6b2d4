"""REINFORCE with a baseline (Williams 1992): settings, loss, algorithm.

Agents play whole episodes. Each action is made more probable by how much more reward followed it
than a critic expected, and the critic is fitted to the rewards that followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fugu.algos import (
    Algorithm,
    LearningConfig,
    Metrics,
    RunContext,
    State,
    Tensors,
    as_arrays,
    load_environments,
    load_network,
    load_rng,
    save_environments,
    save_network,
    save_rng,
)
from fugu.algos.optimizers import make_optimizer, set_learning_rate
from fugu.core.errors import UsageError
from fugu.core.intervals import Fraction, NonNegativeFloat, PositiveInt
from fugu.core.seeding import derive
from fugu.data.episodes import Episode, Episodes, EpisodeShape
from fugu.policies import Policy
from fugu.rollout import Collector, EpisodeActor


@dataclass(frozen=True)
class ReinforceConfig(LearningConfig):
    """Settings of REINFORCE."""

    episodes: PositiveInt = 32
    """Episodes of an update."""
    gamma: Fraction = 0.99
    """Discount of a step."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the baseline's loss."""
    baseline: bool = True
    """Compare returns with the critic's prediction; false: with nothing."""


@dataclass(frozen=True)
class Batch:
    """Steps of episodes, one after another."""

    observations: Tensor
    samples: Tensor
    masks: Tensor | None
    returns: Tensor  # discounted sum of the rewards that followed


def reinforce_loss(
    policy: Policy, batch: Batch, cfg: ReinforceConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch of steps, and its parts."""
    params, values, _ = policy(batch.observations, policy.initial_state(len(batch.returns)))
    log_probs, entropies = policy.distribution.evaluate(params, batch.samples, batch.masks)
    values = values[:, 0]
    advantages = batch.returns - values.detach() if cfg.baseline else batch.returns
    policy_loss = -(log_probs * advantages).mean()
    value_loss = (values - batch.returns).square().mean()
    parts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropies.mean()}
    return policy_loss + cfg.value_coef * value_loss, parts


class EpisodeRecorder(EpisodeActor):
    """Acts for all agents, and keeps the episodes that ended."""

    def __init__(self, *args: Any, enough: int) -> None:
        super().__init__(*args)
        self.ended: list[Episode] = []
        self._enough = enough

    @property
    def full(self) -> bool:
        """Whether there are enough episodes for an update."""
        return len(self.ended) >= self._enough

    def act(self, agents: Any, rows: Any) -> Any:
        """Record what these agents received, and return their next actions."""
        actions = super().act(agents, rows)
        self.ended += [episode for (episode,) in self.episodes.take()]
        return actions


class Reinforce(Algorithm):
    """REINFORCE with a baseline, for one group of agents without memory.

    Args:
        context: What the run hands in.
    """

    Config = ReinforceConfig

    def __init__(self, context: RunContext) -> None:
        cfg, vec = context.config, context.vector
        if len(vec.groups) != 1 or cfg.policy.core != "none":
            raise UsageError(
                f"reinforce: expected one group of agents and policy.core none; got "
                f"{len(vec.groups)} groups and {cfg.policy.core!r}. Use ppo."
            )
        self.context, self.cfg = context, cfg.train
        self._random = [np.random.default_rng(derive(cfg.seed, 1))]
        torch.manual_seed(derive(cfg.seed, 3) >> 1)
        (group,) = vec.groups
        self.policy = context.policy_factory(group, cfg.policy).to(context.device)
        self.policies = [self.policy]
        self.optimizer = make_optimizer(self.policy, self.cfg.optimizer_config())
        shape = EpisodeShape(vec.num_agents, 1, self.policy.distribution.num_samples)
        self.actor = EpisodeRecorder(
            self.policy,
            Episodes(group, shape),
            context.device,
            self._random[0],
            enough=self.cfg.episodes,
        )
        self.collector = Collector(vec, [self.actor])
        self.episodes = self.collector.episodes

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        self.collector.start(self.context.reset_seeds(seed))

    def collect(self) -> None:
        """Play until there are enough episodes."""
        self.collector.collect()

    def update(self, progress: float) -> Metrics:
        """Take one step of the optimizer on all episodes that ended."""
        batch = self._batch(self.actor.ended)
        self.actor.ended = []
        set_learning_rate(self.optimizer, self.context.learning_rate(progress))
        self.optimizer.zero_grad(set_to_none=True)
        loss, parts = reinforce_loss(self.policy, batch, self.cfg)
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimizer.step()
        metrics = {name: float(value.detach()) for name, value in parts.items()}
        return metrics | {"return_to_go": float(batch.returns.mean())}

    def _batch(self, episodes: list[Episode]) -> Batch:
        returns = []
        for episode in episodes:
            total, sums = 0.0, np.zeros(episode.length, np.float32)
            for t in reversed(range(episode.length)):
                sums[t] = total = float(episode.rewards[t]) + self.cfg.gamma * total
            returns.append(sums)
        flat = np.concatenate(returns)
        flat = (flat - flat.mean()) / (flat.std() + 1e-8)  # one learning rate for many tasks

        def joined(name: str) -> Tensor:
            arrays = [getattr(episode, name) for episode in episodes]
            return torch.from_numpy(np.concatenate(arrays)).to(self.context.device)

        masks = joined("masks") if episodes[0].masks.shape[-1] else None
        return Batch(joined("observations"), joined("samples"), masks, torch.from_numpy(flat))

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs."""
        tensors: Tensors = {"episodes": dict(self.actor.episodes.state_dict())}
        optimizer = save_network(tensors, 0, self.policy, self.optimizer)
        save_environments(tensors, self.collector)
        return tensors, {"optimizer": optimizer, "random": save_rng(self._random)}

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        load_network(tensors, 0, self.policy, self.optimizer, state["optimizer"])
        load_rng(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        if load_environments(tensors, self.collector):
            self.actor.episodes.load_state_dict(as_arrays(tensors["episodes"]))
        else:
            self.start(int(state["reset_seed"]))
