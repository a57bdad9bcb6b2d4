"""Safe PPO: rewards while the costs of episodes stay below limits; settings, update.

Each constraint has a critic of its own and a Lagrange multiplier. Before every update the
multipliers move towards what the episodes that ended since the last one call for; then PPO learns
from `(A_r - sum(lambda * A_c)) / (1 + sum(lambda))`, where the reward's advantages are centred and
scaled and those of the costs are centred alone: limits and multipliers are in the units of costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.algos.multipliers import LagrangeMultiplier, Multiplier, PidMultiplier
from fugu.algos.ppo import PPO, PPOConfig, standardised
from fugu.algos.rows import Rows, Signal
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    Fraction,
    NonNegativeFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.core.ranks import ALONE, Ranks, moments_of
from fugu.data.episode_costs import by_constraint
from fugu.data.segments import Segments
from fugu.nets.learning import NativeLearner
from fugu.policies.policy import Policy

Limits = NonNegativeFloat | tuple[NonNegativeFloat, ...]
LIMITS = ("cost_limit", "final_cost_limit")


@dataclass(frozen=True)
class SafePPOConfig(PPOConfig):
    """Settings of Safe PPO."""

    costs: tuple[str, ...] = ("cost",)
    """Entries of infos that hold the costs, a constraint each, of environments in Python; native
    ones have their own."""
    cost_limit: Limits = 25.0
    """What an episode may cost on average: one number for all constraints, or one for each."""
    final_cost_limit: Limits | None = None
    """The same at the end, reached linearly; as at the start if not given."""
    cost_gamma: Fraction | None = None
    """Discount of costs; that of rewards if not given."""
    cost_lambda: Fraction | None = None
    """Decay of the trace of costs; that of rewards if not given."""
    normalise_costs: bool = True
    """Whether cost critics count in units of how large discounted costs are; multipliers and
    limits never do."""
    multiplier: Literal["lagrange", "pid"] = "lagrange"
    """How multipliers move: by Adam's steps, or as a PID controller says."""
    initial_multiplier: NonNegativeFloat = 1.0
    """What multipliers begin with; near 0 policies first learn to do what costs."""
    multiplier_cap: PositiveOrInfinite = 100.0
    """The most that a multiplier becomes."""
    multiplier_rate: NonNegativeFloat = 0.035
    """Adam's learning rate."""
    pid_proportional: NonNegativeFloat = 0.1
    """Weight of the smoothed excess of a cost over its limit."""
    pid_integral: NonNegativeFloat = 0.01
    """Weight of the sum of all excess."""
    pid_derivative: NonNegativeFloat = 0.01
    """Weight of how much a cost has grown."""
    pid_smoothing: Fraction = 0.95
    """Share of the past in smoothed costs."""
    pid_delay: PositiveInt = 10
    """Updates over which growth is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in LIMITS:
            if getattr(self, name) == ():
                raise UsageError(f"train.{name}: given nothing; allowed: one number or more.")
        if self.initial_multiplier > self.multiplier_cap:
            raise UsageError(
                f"train.initial_multiplier: given {self.initial_multiplier}; allowed: 0 to "
                f"train.multiplier_cap={self.multiplier_cap}."
            )

    def limits_at(self, progress: float, constraints: int) -> NDArray[np.float64]:
        """The limit of each constraint when so much of the training is done.

        >>> SafePPOConfig(cost_limit=(10.0, 4.0), final_cost_limit=2.0).limits_at(0.5, 2).tolist()
        [6.0, 3.0]
        """
        first = self._limits("cost_limit", constraints)
        if self.final_cost_limit is None:
            return first
        return first + progress * (self._limits("final_cost_limit", constraints) - first)

    def _limits(self, name: str, constraints: int) -> NDArray[np.float64]:
        given = np.atleast_1d(np.asarray(getattr(self, name), np.float64))
        if len(given) not in (1, constraints):
            raise UsageError(
                f"train.{name}: given {len(given)} limits; allowed: one for all, or "
                f"{constraints}, one for each constraint."
            )
        return np.broadcast_to(given, constraints).copy()


def make_multiplier(cfg: SafePPOConfig, constraints: int) -> Multiplier:
    """What the settings ask for."""
    initial, cap = cfg.initial_multiplier, cfg.multiplier_cap
    if cfg.multiplier == "lagrange":
        return LagrangeMultiplier(constraints, initial=initial, rate=cfg.multiplier_rate, cap=cap)
    return PidMultiplier(
        constraints,
        initial=initial,
        proportional=cfg.pid_proportional,
        integral=cfg.pid_integral,
        derivative=cfg.pid_derivative,
        smoothing=cfg.pid_smoothing,
        delay=cfg.pid_delay,
        cap=cap,
    )


def safe_advantages(
    advantages: NDArray[np.float32],
    multipliers: NDArray[np.float64],
    valid: NDArray[np.bool_] | None,
    *,
    standardise: bool = True,
    ranks: Ranks = ALONE,
) -> NDArray[np.float32]:
    """Advantages of the reward less those of the costs, each as much as its multiplier says.

    Args:
        advantages: Of the reward, then of each cost. `[1 + constraints, horizon, rows]`
        multipliers: `[constraints]`
        valid: Which steps count, `[horizon, rows]`; None: all.
        standardise: Whether those of the reward are centred and scaled.
        ranks: Over whose steps they are centred.
    """
    first = advantages[0]
    total = standardised(first, valid, ranks) if standardise else first.copy()
    for weight, costly in zip(multipliers, advantages[1:], strict=True):
        inside = costly.ravel() if valid is None else costly[valid]
        mean = ranks.moments(moments_of(inside)).mean
        total -= np.float32(weight) * (costly - mean)
    total /= np.float32(1.0 + multipliers.sum())
    return total


class SafePPO(PPO):
    """Updates one policy, and the multipliers of its group's constraints.

    Args:
        policy: To be improved, with a critic for the reward and one for each constraint.
        optimiser: Of its parameters.
        cfg: The settings.
        random: Draws the rows of minibatches.
        constraints: How many.
        ranks: Who learn together.
    """

    cfg: SafePPOConfig

    def __init__(
        self,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        cfg: SafePPOConfig,
        random: np.random.Generator,
        constraints: int,
        ranks: Ranks = ALONE,
        core: NativeLearner | None = None,
    ) -> None:
        super().__init__(policy, optimiser, cfg, random, ranks, core)
        self.multiplier = make_multiplier(cfg, constraints)
        cfg.limits_at(0.0, constraints)  # whose number may be wrong
        self._costs = np.zeros(constraints)  # means of the last episodes that ended
        self._violations = np.zeros(constraints)
        # How large discounted costs are: mean squares, summed over updates. They never forget, or
        # critics would count in tiny units when costs have been rare for long.
        self._squares, self._updates = np.zeros(constraints), 0

    def update(
        self, segments: Segments, progress: float, reward_divisor: float = 1.0
    ) -> dict[str, float]:
        """Move the multipliers, then learn as PPO does."""
        limits = self.cfg.limits_at(progress, len(self.multiplier.values))
        finished = segments.episode_costs.finished
        columns = [np.ones(len(finished)), *finished.T, *(finished > limits).T]
        count, *sums = self._ranks.sum(np.array([column.sum() for column in columns], np.float64))
        if count:
            self._costs, self._violations = np.split(np.array(sums) / count, 2)
            self.multiplier.update(self._costs, limits)
        told = self._tell(limits)
        return told | super().update(segments, progress, reward_divisor)

    def state_dict(self) -> dict[str, Any]:
        """The multipliers, what is known of costs, and what PPO remembers."""
        return super().state_dict() | {
            **{f"multiplier.{k}": v for k, v in self.multiplier.state_dict().items()},
            "costs": self._costs,
            "violations": self._violations,
            "squares": self._squares,
            "updates": np.array(self._updates),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        super().load_state_dict(state)
        arrays = {name: np.asarray(value) for name, value in state.items()}
        prefix = "multiplier."
        own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.multiplier.load_state_dict(own)
        self._costs, self._violations = arrays["costs"].copy(), arrays["violations"].copy()
        self._squares, self._updates = arrays["squares"].copy(), int(arrays["updates"])

    def _tell(self, limits: NDArray[np.float64]) -> dict[str, float]:
        columns = {
            "cost": self._costs,
            "cost_limit": limits,
            "multiplier": self.multiplier.values,
            "violations": self._violations,
        }
        return {name: v for key, c in columns.items() for name, v in by_constraint(key, c).items()}

    # ------------------------------------------------------------------ what differs from PPO

    @property
    def _divisors(self) -> NDArray[np.float64]:
        """What cost critics count costs in."""
        if not self.cfg.normalise_costs or not self._updates:
            return np.ones_like(self._squares)
        sizes = np.sqrt(self._squares / self._updates)
        return np.where(sizes > 1e-8, sizes, 1.0)

    def _signals(
        self, segments: Segments, rows: NDArray[np.int64], reward_divisor: float
    ) -> list[Signal]:
        """The rewards, then each kind of cost, which the reward's divisor leaves alone."""
        cfg = self.cfg
        gamma = cfg.gamma if cfg.cost_gamma is None else cfg.cost_gamma
        lambda_ = cfg.lambda_ if cfg.cost_lambda is None else cfg.cost_lambda
        costs = [
            Signal(kind[:, rows] / np.float32(divisor), gamma, lambda_)
            for kind, divisor in zip(segments.costs, self._divisors, strict=True)
        ]
        return [*super()._signals(segments, rows, reward_divisor), *costs]

    def _preference(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """What is learned from, of all rows."""
        return self._weigh(advantages, valid)

    def _weigh(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        """The advantages of rewards and costs in one."""
        own_units = np.concatenate([[1.0], self._divisors]).astype(np.float32)
        return safe_advantages(
            advantages * own_units[:, None, None],
            self.multiplier.values,
            valid,
            standardise=self.cfg.normalise_advantages,
            ranks=self._ranks,
        )

    def _report(self, data: Rows) -> dict[str, float]:
        """Beside PPO's: how well costs were foretold; how large they are is noted."""
        returns = data.returns()
        told, *costs = data.explained_variances(returns, self._ranks)
        inside = returns[1:, data.valid] * self._divisors[:, None]
        *squares, count = self._ranks.sum(np.append(np.square(inside).sum(1), inside.shape[1]))
        if count:
            self._squares = self._squares + np.array(squares) / count
            self._updates += 1
        named = {f"{k}_explained_variance": v for k, v in by_constraint("cost", costs).items()}
        return {"explained_variance": told, **named}
