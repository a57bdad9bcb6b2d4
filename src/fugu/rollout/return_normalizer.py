"""Return normalizer: rewards in units of how much returns vary, so that settings fit many tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.ranks import SINGLE_PROCESS, Moments, Ranks


class ReturnNormalizer:
    """The standard deviation of agents' discounted returns so far; rewards are divided by it.

    Every agent's return is summed up forward, `G = gamma * G + r`, once for each of its actions,
    and begins at 0 in each episode; the variance is that of all sums seen.

    Args:
        agents: How many.
        gamma: Discount of a step.
        ranks: Over whose agents returns vary.

    Attributes:
        divisor: What to divide rewards by; all ranks ask for it together.
    """

    def __init__(self, agents: int, gamma: float, ranks: Ranks = SINGLE_PROCESS) -> None:
        self._gamma, self._ranks = gamma, ranks
        self._sums = np.zeros(agents)
        self._count, self._mean, self._square = 0.0, 0.0, 0.0  # Welford's three numbers

    @property
    def divisor(self) -> float:
        """1 until returns vary at all."""
        variance = self._square / max(1.0, self._count)
        found = self._ranks.moments(Moments(self._count, self._mean, variance))
        spread = float(found.variance) ** 0.5 if found.count > 1 else 0.0
        return spread if spread > 1e-8 else 1.0

    def note(
        self,
        agents: NDArray[np.int64],
        rewards: NDArray[np.float32],
        ended: NDArray[np.bool_],
        counts: NDArray[np.bool_],
    ) -> None:
        """Take in the rewards of these agents' last actions, `[agents]`.

        Args:
            agents: Agents that acted, each once.
            rewards: All that reached them since.
            ended: Whose episode is over.
            counts: Whose rewards are looked at; a fault may have spoiled the others'.
        """
        sums = np.where(counts, self._gamma * self._sums[agents] + rewards, self._sums[agents])
        self._sums[agents] = np.where(ended, 0.0, sums)
        seen = sums[counts]
        if seen.size:
            self._merge(seen.size, float(seen.mean()), float(seen.var()))

    def note_rows(
        self,
        rewards: NDArray[np.float32],
        ended: NDArray[np.bool_],
    ) -> None:
        """The same for all agents and several times, `[times, agents]`, all of which count."""
        if not len(rewards):
            return
        sums, going_on = rewards.astype(np.float64), (~ended).astype(np.float64)
        for now, on in zip(sums, going_on, strict=True):
            self._sums *= self._gamma
            now += self._sums
            np.multiply(now, on, out=self._sums)
        for mean, variance in zip(sums.mean(1), sums.var(1), strict=True):
            self._merge(len(self._sums), float(mean), float(variance))

    def _merge(self, size: int, mean: float, variance: float) -> None:
        total, shift = self._count + size, mean - self._mean
        self._square += variance * size
        self._square += shift * shift * self._count * size / total
        self._mean += shift * size / total
        self._count = total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {"sums": self._sums, "moments": np.array([self._count, self._mean, self._square])}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self._sums[:] = state["sums"]
        self._count, self._mean, self._square = (float(number) for number in state["moments"])
