"""The seam for algorithms: what one has, and what a training run hands to it.

An algorithm is one class in one file: its settings, its loss, how it collects experience and how
it learns. The trainer calls `start` once, then `collect` and `update` in turns; checkpoints are
made of `state_dict`. Everything it needs comes in the `RunContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

from fugu.algos import settings
from fugu.algos.optimizers import learning_rate_at
from fugu.algos.unused_settings import Unused
from fugu.core.ranks import SINGLE_PROCESS, Ranks
from fugu.core.seeding import derive
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.rollout.actor import Acts
from fugu.rollout.collector import Collector, EpisodeStatistics
from fugu.store.run import Run
from fugu.vector import Vector

Metrics: TypeAlias = dict[str, float]
Tensors: TypeAlias = dict[str, dict[str, Any]]
State: TypeAlias = dict[str, Any]
PolicyFactory: TypeAlias = Callable[..., Policy]


@dataclass
class RunContext:
    """What a training run hands to its algorithm.

    Attributes:
        config: All settings; `config.train` has the type that the algorithm's `Config` names. With
            several processes, counts are this process's share.
        vector: The environments; with several processes, this one's.
        device: Where policies live.
        policy_factory: Makes the policy of a group of agents, called with the group and the
            policy's settings (and the number of critics where there are several).
        ranks: The processes that train together.
        loss: The loss function that the caller gave in place of the algorithm's; None: none.
        opponents: Makes the opponents of a run in a league, from this and the algorithm; None: no
            league.
        run: The run's folder, set before `start` or `load_state_dict`; None if nothing is kept.
        steps: Agent steps so far, of all processes; the trainer counts them after each `collect`.
    """

    config: settings.Config
    vector: Vector
    device: torch.device
    policy_factory: PolicyFactory = make_policy
    ranks: Ranks = SINGLE_PROCESS
    loss: Callable[..., Any] | None = None
    opponents: Callable[[RunContext, Any], Opponents] | None = None
    run: Run | None = None
    steps: int = 0

    def learning_rate(self, progress: float) -> float:
        """Return the learning rate of the update under way, as the settings schedule it."""
        train = self.config.train
        return learning_rate_at(progress, train.optimizer_config(), self.steps / train.total_steps)

    def reset_seeds(self, seed: int) -> int | list[int]:
        """Return the seeds of this process's copies: those that they have in a single process."""
        if self.ranks.size == 1:
            return seed
        size, copies = self.config.vec.group_size, self.vector.num_envs
        first = self.ranks.rank * copies
        return [derive(seed, (first + env) // size) for env in range(copies)]


class Opponents(Protocol):
    """Opponents of a league, which hold some of the agents while an algorithm learns."""

    def make_collector(self, vector: Vector, actors: Sequence[Acts]) -> Collector:
        """Return a collector in which opponents act for the agents that they hold."""

    def start(self) -> None:
        """Fill the pool of opponents, before environments are reset."""

    def after_update(self) -> None:
        """Add a snapshot if one is due, and choose who plays next."""

    def state_dict(self, tensors: Tensors) -> State:
        """Add tensors to a checkpoint; return the rest of the state."""

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""


class Algorithm(Protocol):
    """Everything that one training run does between the vector and the checkpoint.

    Derive from it to inherit the defaults below; only the methods without a body are required.
    Installed algorithms are found by entry points of the group `fugu.algorithms`, others as
    `--algo package.module:Name`.

    Attributes:
        policies: One for each group of agents.
        episodes: Statistics of the episodes that ended.
        collector: What steps the environments; None for algorithms that learn from files.
    """

    Config: ClassVar[type[settings.LearningConfig]] = settings.LearningConfig
    """Settings of the section `train`: a frozen dataclass whose fields are flags `--train.*`."""
    PolicyConfig: ClassVar[type[Any]] = PolicyConfig
    """Settings of the section `policy`."""
    VecConfig: ClassVar[type[settings.VecConfig]] = settings.VecConfig
    """Settings of the section `vec`."""
    unused: ClassVar[Mapping[str, Unused]] = {}
    """Settings that it inherits and cannot use, by their dotted names: other values are refused."""
    ignored_hints: ClassVar[tuple[str, ...]] = ()
    """Sections for which an environment's own suggestions do not hold."""
    supports_ranks: ClassVar[bool] = False
    """Whether several processes can learn together."""
    supports_loss: ClassVar[bool] = False
    """Whether it takes a loss function in place of its own."""
    supports_leagues: ClassVar[bool] = False
    """Whether it can learn while opponents hold some of the agents."""

    changeable: ClassVar[tuple[str, ...]] = ()
    """Settings of `train` that callbacks may change while a run goes on; see `change`."""

    policies: Sequence[Policy]
    episodes: EpisodeStatistics
    collector: Collector | None

    def __init__(self, context: RunContext) -> None:
        """Make policies and buffers; environments are not reset yet."""

    @property
    def steps(self) -> int:
        """Agent steps so far, of this process."""
        return 0 if self.collector is None else self.collector.steps

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        raise NotImplementedError("start(self, seed: int) -> None")

    def collect(self) -> None:
        """Gather the experience of one update."""
        raise NotImplementedError("collect(self) -> None")

    def update(self, progress: float) -> Metrics:
        """Learn from it, and return metrics.

        Args:
            progress: Share of the run that was done before this update's experience, 0 to 1.
        """
        raise NotImplementedError("update(self, progress: float) -> Metrics")

    def change(self, train: Any) -> None:
        """Take new settings, some of `changeable`, from the next update on.

        `RunContext.learning_rate` follows them already.
        """

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs: tensors by name, and the rest as JSON has it."""
        raise NotImplementedError("state_dict(self) -> tuple[Tensors, State]")

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`.

        `state` has two more entries: `steps`, of this process, and `reset_seed` for environments
        without a state, which begin new episodes.
        """
        raise NotImplementedError("load_state_dict(self, tensors, state) -> None")

    @classmethod
    def policy_factory(cls, config: settings.Config, factory: PolicyFactory) -> PolicyFactory:
        """Return what makes the policies of a run to play with them, from the user's factory."""
        made: PolicyFactory = config.train.player(factory)
        return made

    def facts(self) -> State:
        """Return facts of the run to be kept with it, such as what computes its gradients."""
        return {}

    def notices(self) -> list[str]:
        """Return what the user should know when a run starts, one sentence each."""
        return []
