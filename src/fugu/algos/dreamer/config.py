"""Settings of Dreamer: what it is built of, how it learns, and the published sizes of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fugu.core.errors import UsageError


@dataclass(frozen=True)
class DreamerPolicyConfig:
    """What a Dreamer agent is built of."""

    deter: int = 256
    """Numbers of the recurrent part of a latent state."""
    hidden: int = 64
    """Width of the layers inside the recurrent model."""
    stoch: int = 16
    """Categorical variables of the random part."""
    classes: int = 8
    """Classes of each of them."""
    blocks: int = 8
    """Parts of the recurrent unit that see themselves alone."""
    units: int = 64
    """Width of all other networks."""
    depth: int = 8
    """Channels of an image network, which its stages multiply by 2, 3, 4 and 4."""
    strided: bool = True
    """Whether convolutions halve images themselves, and no pooling does: faster, a little worse."""
    layers: int = 3
    """Hidden layers of the encoder, the decoder, the actor and the critic."""
    bins: int = 255
    """Bins of rewards and values."""
    unimix: float = 0.01
    """Share of the uniform distribution in every categorical one."""

    def __post_init__(self) -> None:
        for name in ("deter", "hidden", "stoch", "classes", "blocks", "units", "depth", "layers"):
            if getattr(self, name) < 1:
                given = getattr(self, name)
                raise UsageError(f"policy.{name}: given {given}; allowed: 1 or more.")
        if self.deter % self.blocks:
            raise UsageError(
                f"policy.blocks: given {self.blocks}; allowed: a divisor of policy.deter, which is "
                f"{self.deter}."
            )
        if self.classes > 256:
            raise UsageError(f"policy.classes: given {self.classes}; allowed: 256 or fewer.")
        if self.bins < 3 or self.bins % 2 == 0:
            raise UsageError(f"policy.bins: given {self.bins}; allowed: an odd number from 3 on.")
        if not 0.0 <= self.unimix < 1.0:
            raise UsageError(f"policy.unimix: given {self.unimix}; allowed: 0 to below 1.")


@dataclass(frozen=True)
class DreamerConfig:
    """Settings of Dreamer."""

    train_ratio: float = 64.0
    """Steps of replay that are learned from for each agent step."""
    batch_size: int = 8
    """Sequences of a gradient step."""
    batch_length: int = 32
    """Steps of a sequence."""
    replay_size: int = 200_000
    """Steps that the replay holds, of all agents together."""
    online: bool = True
    """Whether every new sequence is learned from once, before chance chooses among all."""
    prefill: int = 1024
    """Agent steps before the first gradient step."""
    update_every: int = 32
    """Agent steps between updates; each is as many gradient steps as the train ratio asks for."""
    warmup_steps: int = 200
    """Gradient steps in which the learning rate rises from 0."""
    imagination_length: int = 15
    """Steps that are imagined from a state."""
    imagination_starts: int = 16
    """Last steps of each sequence that imagination starts from; 0: all."""
    discount_horizon: float = 333.0
    """Steps that the discount looks ahead: it is 1 - 1 / discount_horizon."""
    lambda_: float = 0.95
    """How far returns rest on what follows and not on the critic."""
    entropy_coefficient: float = 3e-4
    """Weight of the actor's entropy."""
    free_nats: float = 1.0
    """Divergence of prior and posterior below which neither is trained."""
    dynamics_scale: float = 1.0
    """Weight of the loss that draws the prior to the posterior."""
    representation_scale: float = 0.1
    """Weight of the loss that draws the posterior to the prior."""
    reconstruction_scale: float = 1.0
    """Weight of the loss of observations."""
    reward_scale: float = 1.0
    """Weight of the loss of rewards."""
    continue_scale: float = 1.0
    """Weight of the loss of whether episodes go on."""
    policy_scale: float = 1.0
    """Weight of the actor's loss."""
    value_scale: float = 1.0
    """Weight of the critic's loss in imagination."""
    replay_value_scale: float = 0.3
    """Weight of the critic's loss in replay."""
    slow_rate: float = 0.02
    """Share of the critic that goes over into the slow one in a gradient step."""
    slow_scale: float = 1.0
    """Weight of the slow critic's values as targets, beside the returns."""
    return_rate: float = 0.01
    """Share of new percentiles in those that scale returns."""
    return_low: float = 0.05
    """The lower percentile of returns, as a share."""
    return_high: float = 0.95
    """The upper percentile of returns, as a share."""
    return_limit: float = 1.0
    """Returns whose percentiles lie closer together than this are not scaled up."""

    def __post_init__(self) -> None:
        for name, low in _LEAST.items():
            if getattr(self, name) < low:
                given = getattr(self, name)
                raise UsageError(f"train.{name}: given {given}; allowed: {low} or more.")
        if self.train_ratio <= 0.0:
            raise UsageError(f"train.train_ratio: given {self.train_ratio}; allowed: above 0.")
        if not 0 <= self.imagination_starts <= self.batch_length:
            raise UsageError(
                f"train.imagination_starts: given {self.imagination_starts}; allowed: 0 to "
                f"train.batch_length, which is {self.batch_length}."
            )
        if not 0.0 <= self.lambda_ <= 1.0:
            raise UsageError(f"train.lambda: given {self.lambda_}; allowed: 0 to 1.")

    @property
    def starts(self) -> int:
        """Steps of each sequence that imagination starts from."""
        return self.imagination_starts or self.batch_length


_LEAST = {
    "batch_size": 1,
    "batch_length": 2,
    "prefill": 0,
    "update_every": 1,
    "warmup_steps": 0,
    "imagination_length": 1,
    "discount_horizon": 1.0,
}
Tree = dict[str, Any]


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
