"""MAPPO and IPPO: PPO for teams, with critics that see more than actors do.

Actors see what their agents see. Critics see the state of the whole environment (MAPPO), or no more
than actors do (IPPO). They predict normalized returns: each minibatch first moves the mean and the
deviation of returns, then critics are fitted to returns in those units. Their values are turned
back into units of rewards while agents act, so that advantages are PPO's own. Steps of agents that
are dead are never stored, so no loss has to be masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fugu.algos.algorithm import Metrics, RunContext
from fugu.algos.ppo import PPO, Critics, GroupSetup, PPOConfig
from fugu.algos.segment_view import CriticTarget, Minibatch, MinibatchIndices, SegmentView
from fugu.algos.settings import NO_CUSTOM_LOSS, NO_INTRINSIC, Unused
from fugu.core.errors import UsageError
from fugu.core.ranks import SINGLE_PROCESS, Ranks
from fugu.data.segments import Segments
from fugu.envs.contract import AgentGroup
from fugu.policies.central import (
    CentralPolicy,
    CriticLayout,
    RowPart,
    make_central_policy,
    make_player,
)
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy
from fugu.rollout.observation_views import CriticObservations
from fugu.spaces import Layout


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
    learning_rate: float = 7e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    @property
    def emulation(self) -> dict[str, Any]:
        """Whether environments show their state."""
        return {"global_state": self.critic == "central" and self.state != "observations"}

    def player(self, factory: Callable[..., Policy]) -> Callable[..., Policy]:
        """Return what makes actors alone."""
        return partial(make_player, factory, self.agent_ids, self.share_parameters)


LEAST_WEIGHT, LEAST_VARIANCE = 1e-5, 1e-2


class ValueNorm:
    """Moving means of returns and of their squares (van Hasselt et al. 2016, Yu et al. 2022).

    A mean begins at 0, so it is divided by how much weight it has gathered: `1 - beta ** updates`.

    Attributes:
        mean: Of returns; 0 before the first.
        deviation: Of returns, at least 0.1.

    >>> norm = ValueNorm(beta=0.5)
    >>> norm.update(np.array([1.0, 3.0]))
    >>> norm.mean, norm.deviation
    (2.0, 1.0)
    """

    def __init__(self, beta: float = 0.99999) -> None:
        self._beta = beta
        self._mean, self._square, self._weight = 0.0, 0.0, 0.0

    @property
    def mean(self) -> float:
        """The mean of returns."""
        return self._mean / max(self._weight, LEAST_WEIGHT)

    @property
    def deviation(self) -> float:
        """The standard deviation of returns."""
        square = self._square / max(self._weight, LEAST_WEIGHT)
        return math.sqrt(max(square - self.mean**2, LEAST_VARIANCE))

    def update(self, returns: np.ndarray[Any, Any], ranks: Ranks = SINGLE_PROCESS) -> None:
        """Add the returns of all ranks; none change nothing."""
        numbers, new = returns.astype(np.float64), 1.0 - self._beta
        sums = np.array([numbers.size, numbers.sum(), np.square(numbers).sum()])
        count, total, squares = ranks.sum(sums).tolist()
        if not count:
            return
        self._mean = self._beta * self._mean + new * (total / count)
        self._square = self._beta * self._square + new * (squares / count)
        self._weight = self._beta * self._weight + new

    def normalize(self, values: Tensor) -> Tensor:
        """Return values in units of rewards as critics predict them."""
        return (values - self.mean) / self.deviation

    def denormalize(self, values: Tensor) -> Tensor:
        """Return predictions of critics in units of rewards."""
        return values.float() * self.deviation + self.mean

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as arrays."""
        return {"value_norm": np.array([self._mean, self._square, self._weight])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        moments = np.asarray(state["value_norm"], np.float64).tolist()
        self._mean, self._square, self._weight = moments


class NormalizedCritics(Critics):
    """Critics that predict normalized returns, and see no end where a time limit cut an episode.

    Args:
        cfg: The settings.
        ranks: The processes that train together.

    Attributes:
        value_norm: Mean and deviation of returns.
    """

    cfg: MAPPOConfig

    def __init__(self, cfg: MAPPOConfig, ranks: Ranks = SINGLE_PROCESS) -> None:
        super().__init__(cfg, ranks)
        self.value_norm = ValueNorm()

    def begin_update(
        self, segments: Segments, rows: NDArray[np.int64], reward_divisor: float, progress: float
    ) -> tuple[list[CriticTarget], Metrics]:
        """Return PPO's targets; forget final values if time limits count as ends."""
        if self.cfg.time_limits == "end":
            segments.final_values.fill(0.0)
        return super().begin_update(segments, rows, reward_divisor, progress)

    def minibatches(
        self, data: SegmentView, indices: MinibatchIndices
    ) -> Iterator[tuple[NDArray[np.int64], Minibatch]]:
        """Add a minibatch's returns to the statistics; yield it with normalized values."""
        returns, norm = data.targets(indices), self.value_norm
        norm.update(returns[:, data.valid[:, indices.chosen]], self.ranks)
        for chosen, batch in super().minibatches(data, indices):
            if self.cfg.normalise_values:
                values, targets = norm.normalize(batch.old_values), norm.normalize(batch.returns)
                batch = replace(batch, old_values=values, returns=targets)
            yield chosen, batch

    def report(self, data: SegmentView) -> Metrics:
        """Return PPO's metrics, and the mean and deviation of returns."""
        norm = self.value_norm
        found = {"return_mean": norm.mean, "return_deviation": norm.deviation}
        return super().report(data) | found

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics of returns."""
        return self.value_norm.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        self.value_norm.load_state_dict(state)


class MAPPO(PPO):
    """PPO with critics that see the state of the whole environment.

    Args:
        context: What the run hands in.
    """

    Config = MAPPOConfig
    supports_leagues = supports_loss = False
    unused: ClassVar[Mapping[str, Unused]] = {
        "train.intrinsic": NO_INTRINSIC,
        "train.loss": NO_CUSTOM_LOSS,
        "policy.critic": Unused(
            ("shared", "auto"),
            "Its critics always have networks of their own; leave the setting out. train.critic "
            "sets what they see.",
        ),
        "policy.recall": Unused((0,), "Use algo ppo or grpo for a policy that recalls."),
    }

    def __init__(self, context: RunContext) -> None:
        train, vec = context.config.train, context.vector
        layouts = make_critic_layouts(vec.groups, train)
        by_name = {group.name: layout for group, layout in zip(vec.groups, layouts, strict=True)}

        def set_up(group: AgentGroup, cfg: PolicyConfig) -> GroupSetup:
            layout, critics = by_name[group.name], NormalizedCritics(train, context.ranks)
            policy = make_central_policy(
                group,
                cfg,
                layout,
                agent_ids=train.agent_ids,
                shared=train.share_parameters,
                critic=critic_parts(layout, train),
                factory=context.policy_factory,
            )
            assert isinstance(policy, CentralPolicy)
            if train.normalise_values:
                policy.rescale = critics.value_norm.denormalize
            return GroupSetup(policy, replace(group, observation_layout=layout.row_layout), critics)

        super().__init__(context, set_up, partial(CriticObservations, vec, layouts))


def make_critic_layouts(groups: Sequence[AgentGroup], cfg: MAPPOConfig) -> list[CriticLayout]:
    """Return what the observations of each group consist of, those of critics included."""
    state = groups[0].state_layout
    if cfg.critic == "central" and cfg.state == "environment" and state is None:
        raise UsageError(
            "train.state: given 'environment' for one without a state of its own; allowed: "
            "PettingZoo environments that have state() and state_space. Take 'observations'."
        )
    rest: tuple[tuple[Layout, int], ...] = ()
    if cfg.critic == "central" and cfg.state != "observations" and state is not None:
        rest = ((state, 1),)
    elif cfg.critic == "central":
        rest = tuple((group.observation_layout, group.num_agents) for group in groups)
    agent_ids = cfg.agent_ids or not cfg.share_parameters
    return [CriticLayout.of(group, agent_ids=agent_ids, rest=rest) for group in groups]


def critic_parts(layout: CriticLayout, cfg: MAPPOConfig) -> tuple[RowPart, ...]:
    """Return the parts of an observation that critics read."""
    parts = [layout.own] if cfg.critic == "local" or cfg.own_observation else []
    if layout.agent is not None and cfg.agent_ids and cfg.share_parameters:
        parts.append(layout.agent)
    return (*parts, *layout.rest)
