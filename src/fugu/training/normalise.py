"""Reward scale: rewards in units of how much returns vary, so that settings fit many tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RewardScale:
    """The spread of agents' discounted returns so far; rewards are divided by it.

    Every agent's return is summed up forward, `G = gamma * G + r`, and begins anew with each
    episode; the variance is that of all sums seen.

    Attributes:
        divisor: What to divide rewards by.
    """

    def __init__(self, agents: int, gamma: float) -> None:
        self._gamma = gamma
        self._sums = np.zeros(agents)
        self._count, self._mean, self._square = 0.0, 0.0, 0.0  # Welford's three numbers

    @property
    def divisor(self) -> float:
        """1 until returns vary at all."""
        spread = (self._square / self._count) ** 0.5 if self._count > 1 else 0.0
        return spread if spread > 1e-8 else 1.0

    def note(
        self,
        agents: NDArray[np.int64],
        rewards: NDArray[np.float32],
        ended: NDArray[np.bool_],
        counts: NDArray[np.bool_],
    ) -> None:
        """Rewards that came to agents; only those that count are looked at."""
        sums = np.where(counts, self._gamma * self._sums[agents] + rewards, self._sums[agents])
        self._sums[agents] = np.where(ended, 0.0, sums)
        seen = sums[counts]
        if not seen.size:
            return
        total, mean = self._count + seen.size, float(seen.mean())
        shift = mean - self._mean
        self._square += float(seen.var()) * seen.size
        self._square += shift * shift * self._count * seen.size / total
        self._mean += shift * seen.size / total
        self._count = total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {"sums": self._sums, "moments": np.array([self._count, self._mean, self._square])}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self._sums[:] = state["sums"]
        self._count, self._mean, self._square = (float(number) for number in state["moments"])
