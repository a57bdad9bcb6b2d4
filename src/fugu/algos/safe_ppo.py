"""Safe PPO: rewards while the costs of episodes stay below limits.

Each constraint has a critic of its own and a Lagrange multiplier. Before every update the
multipliers move towards what the episodes that ended since the last one call for; then PPO learns
from `(A_r - sum(lambda * A_c)) / (1 + sum(lambda))`, where the reward's advantages are centered and
scaled and those of the costs are only centered: limits and multipliers are in the units of costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fugu.algos.algorithm import Metrics, RunContext
from fugu.algos.ppo import PPO, Critics, GroupSetup, PPOConfig, standardize
from fugu.algos.segment_view import CriticTarget, SegmentView
from fugu.algos.settings import NO_CUSTOM_LOSS, NO_INTRINSIC, Unused
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    Fraction,
    NonNegativeFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.core.ranks import SINGLE_PROCESS, Ranks, moments_of
from fugu.data.segments import Segments, by_constraint
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig

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

    @property
    def emulation(self) -> dict[str, Any]:
        """The entries of infos that are costs."""
        return {"costs": self.costs}

    def num_critics(self, group: AgentGroup) -> int:
        """One for the reward and one for each constraint."""
        return 1 + group.num_costs

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


Numbers = NDArray[np.float64]


class Multiplier(Protocol):
    """One weight for each constraint.

    Attributes:
        values: Of now, `[constraints]`.
    """

    values: Numbers

    def update(self, costs: Numbers, limits: Numbers) -> None:
        """Take the mean costs of episodes into account, both `[constraints]`."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""


class LagrangeMultiplier:
    """Adam's steps on `-lambda * (cost - limit)`, kept from 0 to the cap.

    Args:
        constraints: How many.
        initial: What it begins with.
        rate: Adam's learning rate.
        cap: The most that it becomes.

    >>> multiplier = LagrangeMultiplier(1, initial=0.5, rate=0.1)
    >>> multiplier.update(np.array([30.0]), np.array([25.0]))
    >>> multiplier.values.round(6).tolist()
    [0.6]
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(
        self, constraints: int, *, initial: float = 0.001, rate: float = 0.035, cap: float = np.inf
    ) -> None:
        self.values = np.full(constraints, float(initial))
        self._rate, self._cap = rate, cap
        self._mean, self._square = np.zeros(constraints), np.zeros(constraints)
        self._steps = np.zeros((), np.int64)

    def update(self, costs: Numbers, limits: Numbers) -> None:
        """Take the mean costs of episodes into account, both `[constraints]`."""
        first, second = self.BETAS
        gradient = limits - costs
        self._steps += 1
        self._mean += (1 - first) * (gradient - self._mean)
        self._square += (1 - second) * (gradient**2 - self._square)
        mean = self._mean / (1 - first**self._steps)
        spread = np.sqrt(self._square / (1 - second**self._steps))
        step = self._rate * mean / (spread + self.EPSILON)
        self.values = np.clip(self.values - step, 0.0, self._cap)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {
            "values": self.values,
            "mean": self._mean,
            "square": self._square,
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self.values = np.array(state["values"])
        self._mean, self._square = np.array(state["mean"]), np.array(state["square"])
        self._steps = np.array(state["steps"])


class PidMultiplier:
    """A controller: proportional to the excess, to its sum, and to how fast costs grow.

    With `e = cost - limit` and E, C moving averages of e and of the cost,

        I = max(0, I + integral * e)
        D = max(0, C - C `delay` updates ago)
        lambda = proportional * E + I + derivative * D, kept from 0 to the cap

    Args:
        constraints: How many.
        initial: What it begins with.
        proportional: Weight of the smoothed excess.
        integral: Weight of the sum of all excess.
        derivative: Weight of the growth.
        smoothing: Share of the past in the moving averages.
        delay: Updates over which growth is measured.
        cap: The most that it becomes.
    """

    def __init__(
        self,
        constraints: int,
        *,
        initial: float = 0.001,
        proportional: float = 0.1,
        integral: float = 0.01,
        derivative: float = 0.01,
        smoothing: float = 0.95,
        delay: int = 10,
        cap: float = 100.0,
    ) -> None:
        self.values = np.full(constraints, float(initial))
        self._gains, self._smoothing = (proportional, integral, derivative), smoothing
        self._delay, self._cap = delay, cap
        self._sum = self.values.copy()
        self._excess, self._cost = np.zeros(constraints), np.zeros(constraints)
        self._past = np.zeros((1, constraints))  # the smoothed costs of updates before

    def update(self, costs: Numbers, limits: Numbers) -> None:
        """Take the mean costs of episodes into account, both `[constraints]`."""
        proportional, integral, derivative = self._gains
        excess, share = costs - limits, 1 - self._smoothing
        self._sum = np.maximum(0.0, self._sum + integral * excess)
        self._excess = self._smoothing * self._excess + share * excess
        self._cost = self._smoothing * self._cost + share * costs
        growth = np.maximum(0.0, self._cost - self._past[0])
        self._past = np.concatenate([self._past, self._cost[None]])[-self._delay :]
        wanted = proportional * self._excess + self._sum + derivative * growth
        self.values = np.clip(wanted, 0.0, self._cap)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {
            "values": self.values,
            "sum": self._sum,
            "excess": self._excess,
            "cost": self._cost,
            "past": self._past,
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self.values, self._sum = np.array(state["values"]), np.array(state["sum"])
        self._excess, self._cost = np.array(state["excess"]), np.array(state["cost"])
        self._past = np.array(state["past"])


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
    least: float = 0.0,
    ranks: Ranks = SINGLE_PROCESS,
) -> NDArray[np.float32]:
    """Advantages of the reward less those of the costs, each as much as its multiplier says.

    Args:
        advantages: Of the reward, then of each cost. `[1 + constraints, horizon, rows]`
        multipliers: `[constraints]`
        valid: Which steps count, `[horizon, rows]`; None: all.
        standardise: Whether those of the reward are centred and scaled.
        least: The least deviation that those of the reward are divided by.
        ranks: Over whose steps they are centered.
    """
    first = advantages[0]
    total = standardize(first, valid, ranks, least) if standardise else first.copy()
    for weight, costly in zip(multipliers, advantages[1:], strict=True):
        inside = costly.ravel() if valid is None else costly[valid]
        mean = ranks.moments(moments_of(inside)).mean
        total -= np.float32(weight) * (costly - mean)
    total /= np.float32(1.0 + multipliers.sum())
    return total


class CostCritics(Critics):
    """A critic of the reward and one of each constraint, weighed by Lagrange multipliers.

    Args:
        cfg: The settings.
        constraints: Number of constraints.
        ranks: The processes that train together.
    """

    cfg: SafePPOConfig

    def __init__(self, cfg: SafePPOConfig, constraints: int, ranks: Ranks = SINGLE_PROCESS) -> None:
        super().__init__(cfg, ranks)
        self.multiplier = make_multiplier(cfg, constraints)
        cfg.limits_at(0.0, constraints)  # raises if their number is wrong
        self._costs = np.zeros(constraints)  # means of the last episodes that ended
        self._violations = np.zeros(constraints)
        # Mean squares of discounted costs, summed over updates. They never forget, or critics would
        # count in tiny units when costs have been rare for long.
        self._squares, self._updates = np.zeros(constraints), 0

    def begin_update(
        self, segments: Segments, rows: NDArray[np.int64], reward_divisor: float, progress: float
    ) -> tuple[list[CriticTarget], Metrics]:
        """Move the multipliers by the costs of the episodes that ended.

        The targets are the rewards, then each kind of cost, in units of its own.
        """
        limits = self.cfg.limits_at(progress, len(self.multiplier.values))
        finished = segments.episode_costs.finished
        columns = [np.ones(len(finished)), *finished.T, *(finished > limits).T]
        count, *sums = self.ranks.sum(np.array([column.sum() for column in columns], np.float64))
        if count:
            self._costs, self._violations = np.split(np.array(sums) / count, 2)
            self.multiplier.update(self._costs, limits)
        facts = {
            "cost": self._costs,
            "cost_limit": limits,
            "multiplier": self.multiplier.values,
            "violations": self._violations,
        }
        targets, metrics = super().begin_update(segments, rows, reward_divisor, progress)
        cfg = self.cfg
        gamma = cfg.gamma if cfg.cost_gamma is None else cfg.cost_gamma
        lambda_ = cfg.lambda_ if cfg.cost_lambda is None else cfg.cost_lambda
        for kind, divisor in zip(segments.costs, self._divisors, strict=True):
            targets.append(CriticTarget(kind[:, rows] / np.float32(divisor), gamma, lambda_))
        for name, numbers in facts.items():
            metrics |= by_constraint(name, numbers)
        return targets, metrics

    @property
    def _divisors(self) -> NDArray[np.float64]:
        """The units in which cost critics count."""
        if not self.cfg.normalise_costs or not self._updates:
            return np.ones_like(self._squares)
        sizes = np.sqrt(self._squares / self._updates)
        return np.where(sizes > 1e-8, sizes, 1.0)

    def preference(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Return the combined advantages, by which segments are prioritized."""
        return self.combine(advantages, valid)

    def combine(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        """Return the advantages of rewards less those of costs; see `safe_advantages`."""
        units = np.concatenate([[1.0], self._divisors]).astype(np.float32)
        return safe_advantages(
            advantages * units[:, None, None],
            self.multiplier.values,
            valid,
            standardise=self.cfg.normalise_advantages,
            least=self.cfg.advantage_std_min,
            ranks=self.ranks,
        )

    def report(self, data: SegmentView) -> Metrics:
        """Return how well returns and costs were predicted, and update the units of costs."""
        returns = data.returns()
        first, *costs = data.explained_variances(returns, self.ranks)
        inside = returns[1:, data.valid] * self._divisors[:, None]
        *squares, count = self.ranks.sum(np.append(np.square(inside).sum(1), inside.shape[1]))
        if count:
            self._squares = self._squares + np.array(squares) / count
            self._updates += 1
        named = {f"{k}_explained_variance": v for k, v in by_constraint("cost", costs).items()}
        return {"explained_variance": first, **named}

    def state_dict(self) -> dict[str, Any]:
        """Return the multipliers and the statistics of costs."""
        return {
            **{f"multiplier.{k}": v for k, v in self.multiplier.state_dict().items()},
            "costs": self._costs,
            "violations": self._violations,
            "squares": self._squares,
            "updates": np.array(self._updates),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        arrays = {name: np.asarray(value) for name, value in state.items()}
        prefix = "multiplier."
        own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.multiplier.load_state_dict(own)
        self._costs, self._violations = arrays["costs"].copy(), arrays["violations"].copy()
        self._squares, self._updates = arrays["squares"].copy(), int(arrays["updates"])


class SafePPO(PPO):
    """PPO with a critic and a Lagrange multiplier for each constraint.

    A group of agents without costs learns by plain PPO.

    Args:
        context: What the run hands in.
    """

    Config = SafePPOConfig
    supports_loss = False
    unused: ClassVar[Mapping[str, Unused]] = {
        "train.intrinsic": NO_INTRINSIC,
        "train.loss": NO_CUSTOM_LOSS,
    }

    def __init__(self, context: RunContext) -> None:
        if not any(group.num_costs for group in context.vector.groups):
            raise UsageError(
                f"algo: given safe_ppo for {context.config.env}, which has no costs; allowed: "
                "native environments that have some, such as hazard_grid, and others whose infos "
                "hold them (--train.costs names the entries)."
            )
        train: SafePPOConfig = context.config.train

        def set_up(group: AgentGroup, cfg: PolicyConfig) -> GroupSetup:
            policy = context.policy_factory(group, cfg, train.num_critics(group))
            return GroupSetup(policy, group, CostCritics(train, group.num_costs, context.ranks))

        super().__init__(context, set_up)
