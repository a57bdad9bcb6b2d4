"""Value normalisation: critics foretell returns of mean 0 and deviation 1, whatever their size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fugu.core.ranks import SINGLE_PROCESS, Ranks

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
        """See the class."""
        return self._mean / max(self._weight, LEAST_WEIGHT)

    @property
    def deviation(self) -> float:
        """See the class."""
        square = self._square / max(self._weight, LEAST_WEIGHT)
        return math.sqrt(max(square - self.mean**2, LEAST_VARIANCE))

    def update(self, returns: np.ndarray[Any, Any], ranks: Ranks = SINGLE_PROCESS) -> None:
        """Let returns of all ranks count; none change nothing."""
        numbers, new = returns.astype(np.float64), 1.0 - self._beta
        sums = np.array([numbers.size, numbers.sum(), np.square(numbers).sum()])
        count, total, squares = ranks.sum(sums).tolist()
        if not count:
            return
        self._mean = self._beta * self._mean + new * (total / count)
        self._square = self._beta * self._square + new * (squares / count)
        self._weight = self._beta * self._weight + new

    def normalise(self, values: Tensor) -> Tensor:
        """In units of returns to what critics say."""
        return (values - self.mean) / self.deviation

    def denormalise(self, values: Tensor) -> Tensor:
        """What critics say in units of returns."""
        return values.float() * self.deviation + self.mean

    def state_dict(self) -> dict[str, Any]:
        """All of it, as arrays."""
        return {"value_norm": np.array([self._mean, self._square, self._weight])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        moments = np.asarray(state["value_norm"], np.float64).tolist()
        self._mean, self._square, self._weight = moments
