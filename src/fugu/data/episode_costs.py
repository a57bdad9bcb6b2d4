"""Costs of whole episodes, which span rows and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class EpisodeCosts:
    """What agents have paid since their episodes began, and what ended episodes came to.

    >>> costs = EpisodeCosts(agents=2, constraints=1)
    >>> both, one = np.array([0, 1]), np.array([[1.0], [3.0]], np.float32)
    >>> costs.note(both, one, np.array([False, False]), np.array([True, True]))
    >>> costs.note(both, one, np.array([True, False]), np.array([True, True]))
    >>> costs.finished.tolist()
    [[2.0]]
    """

    def __init__(self, agents: int, constraints: int) -> None:
        self._sums = np.zeros((agents, constraints))
        self._finished = np.zeros((0, constraints))

    @property
    def finished(self) -> NDArray[np.float64]:
        """Of episodes that ended since `clear`, `[episodes, constraints]`."""
        return self._finished

    def clear(self) -> None:
        """Forget the ended episodes."""
        self._finished = self._finished[:0]

    def note(
        self,
        agents: NDArray[np.int64],
        costs: NDArray[np.float32],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> None:
        """What agents paid now, `[agents, constraints]`; episodes that broke do not count."""
        sums = self._sums[agents] + np.where(valid[:, None], costs, 0.0)
        self._sums[agents] = np.where((ended | ~valid)[:, None], 0.0, sums)
        done = ended & valid
        if done.any():
            self._finished = np.concatenate([self._finished, sums[done]])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {"episode_costs": self._sums, "finished_costs": self._finished}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self._sums[:] = state["episode_costs"]
        self._finished = np.array(state["finished_costs"])


def by_constraint(name: str, numbers: Sequence[float] | NDArray[Any]) -> dict[str, float]:
    """One number for each constraint, by name; the bare name if there is only one.

    >>> by_constraint("cost", [1.5]), by_constraint("cost", [1.5, 2.0])
    ({'cost': 1.5}, {'cost_0': 1.5, 'cost_1': 2.0})
    """
    if len(numbers) == 1:
        return {name: float(numbers[0])}
    return {f"{name}_{i}": float(number) for i, number in enumerate(numbers)}
