"""Settings of Dreamer: what it is built of, how it learns, and the published sizes of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fugu.algos.optimizers import OptimizerKind
from fugu.algos.settings import LearningConfig, VecConfig
from fugu.core.config import Tree
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    CheckedConfig,
    Fraction,
    FractionBelowOne,
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)


@dataclass(frozen=True)
class DreamerPolicyConfig(CheckedConfig):
    """What a Dreamer agent is built of."""

    section: ClassVar[str] = "policy"

    deter: PositiveInt = 256
    """Numbers of the recurrent part of a latent state."""
    hidden: PositiveInt = 64
    """Width of the layers inside the recurrent model."""
    stoch: PositiveInt = 16
    """Categorical variables of the random part."""
    classes: Annotated[int, Interval(1, 256)] = 8
    """Classes of each of them."""
    blocks: PositiveInt = 8
    """Parts of the recurrent unit that see themselves alone."""
    units: PositiveInt = 64
    """Width of all other networks."""
    depth: PositiveInt = 8
    """Channels of an image network, which its stages multiply by 2, 3, 4 and 4."""
    strided: bool = True
    """Whether convolutions halve images themselves, and no pooling does: faster, a little worse."""
    layers: PositiveInt = 3
    """Hidden layers of the encoder, the decoder, the actor and the critic."""
    bins: Annotated[int, Interval(3)] = 255
    """Bins of rewards and values."""
    unimix: FractionBelowOne = 0.01
    """Share of the uniform distribution in every categorical one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deter % self.blocks:
            raise UsageError(
                f"policy.blocks: given {self.blocks}; allowed: a divisor of policy.deter, which is "
                f"{self.deter}."
            )
        if self.bins % 2 == 0:
            raise UsageError(f"policy.bins: given {self.bins}; allowed: an odd number from 3 on.")


@dataclass(frozen=True)
class DreamerConfig(LearningConfig):
    """Settings of Dreamer."""

    total_steps: int = 100_000
    """Agent steps of the whole run."""
    optimiser: OptimizerKind = "laprop"
    """Optimizer of all networks together."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    threads: int = 1
    """Threads that torch may use; 0: as it chooses. More do not help with small networks."""

    train_ratio: PositiveFloat = 64.0
    """Steps of replay that are learned from for each agent step."""
    batch_size: PositiveInt = 8
    """Sequences of a gradient step."""
    batch_length: Annotated[int, Interval(2)] = 32
    """Steps of a sequence."""
    replay_size: PositiveInt = 200_000
    """Steps that the replay holds, of all agents together."""
    online: bool = True
    """Whether every new sequence is learned from once, before chance chooses among all."""
    prefill: NonNegativeInt = 1024
    """Agent steps before the first gradient step."""
    update_every: PositiveInt = 32
    """Agent steps between updates; each is as many gradient steps as the train ratio asks for."""
    warmup_steps: NonNegativeInt = 200
    """Gradient steps in which the learning rate rises from 0."""
    imagination_length: PositiveInt = 15
    """Steps that are imagined from a state."""
    imagination_starts: NonNegativeInt = 16
    """Last steps of each sequence that imagination starts from; 0: all."""
    discount_horizon: Annotated[float, Interval(1.0)] = 333.0
    """Steps that the discount looks ahead: it is 1 - 1 / discount_horizon."""
    lambda_: Fraction = 0.95
    """How far returns rest on what follows and not on the critic."""
    entropy_coefficient: NonNegativeFloat = 3e-4
    """Weight of the actor's entropy."""
    free_nats: NonNegativeFloat = 1.0
    """Divergence of prior and posterior below which neither is trained."""
    dynamics_scale: NonNegativeFloat = 1.0
    """Weight of the loss that draws the prior to the posterior."""
    representation_scale: NonNegativeFloat = 0.1
    """Weight of the loss that draws the posterior to the prior."""
    reconstruction_scale: NonNegativeFloat = 1.0
    """Weight of the loss of observations."""
    reward_scale: NonNegativeFloat = 1.0
    """Weight of the loss of rewards."""
    continue_scale: NonNegativeFloat = 1.0
    """Weight of the loss of whether episodes go on."""
    policy_scale: NonNegativeFloat = 1.0
    """Weight of the actor's loss."""
    value_scale: NonNegativeFloat = 1.0
    """Weight of the critic's loss in imagination."""
    replay_value_scale: NonNegativeFloat = 0.3
    """Weight of the critic's loss in replay."""
    slow_rate: Fraction = 0.02
    """Share of the critic that goes over into the slow one in a gradient step."""
    slow_scale: NonNegativeFloat = 1.0
    """Weight of the slow critic's values as targets, beside the returns."""
    return_rate: Fraction = 0.01
    """Share of new percentiles in those that scale returns."""
    return_low: Fraction = 0.05
    """The lower percentile of returns, as a share."""
    return_high: Fraction = 0.95
    """The upper percentile of returns, as a share."""
    return_limit: PositiveFloat = 1.0
    """Returns whose percentiles lie closer together than this are not scaled up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.imagination_starts > self.batch_length:
            raise UsageError(
                f"train.imagination_starts: given {self.imagination_starts}; allowed: 0 to "
                f"train.batch_length, which is {self.batch_length}."
            )
        if self.return_low >= self.return_high:
            raise UsageError(
                f"train.return_low: given {self.return_low}; allowed: below train.return_high, "
                f"which is {self.return_high}."
            )

    @property
    def starts(self) -> int:
        """Steps of each sequence that imagination starts from."""
        return self.imagination_starts or self.batch_length


@dataclass(frozen=True)
class DreamerVecConfig(VecConfig):
    """How environments are stepped for Dreamer."""

    num_envs: int = 8
    """Copies."""


def _published(deter: int, hidden: int, classes: int, units: int, depth: int) -> Tree:
    """A published size, with the published way to learn."""
    return {
        "algo": "dreamer",
        "policy": {
            "deter": deter,
            "hidden": hidden,
            "stoch": 32,
            "classes": classes,
            "units": units,
            "depth": depth,
            "strided": False,
        },
        "train": {
            "learning_rate": 4e-5,
            "warmup_steps": 1000,
            "train_ratio": 32.0,
            "batch_size": 16,
            "batch_length": 64,
            "imagination_starts": 0,
            "replay_size": 5_000_000,
            "threads": 0,
        },
        "vec": {"num_envs": 16},
    }


PRESETS: dict[str, Tree] = {
    "cpu": {"algo": "dreamer"},  # the defaults
    "1m": _published(512, 64, 4, 64, 4),
    "12m": _published(2048, 256, 16, 256, 16),
    "25m": _published(3072, 384, 24, 384, 24),
    "50m": _published(4096, 512, 32, 512, 32),
    "100m": _published(6144, 768, 48, 768, 48),
    "200m": _published(8192, 1024, 64, 1024, 64),
}
