"""Lagrange multipliers: how much each cost weighs, raised while it is above its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
