"""What every sink of metrics has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Values = Sequence[float] | npt.NDArray[np.generic]


class Sink(Protocol):
    """Somewhere metrics go. Derive from it for a `histogram` that does nothing."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        raise NotImplementedError("write(step: int, metrics: Mapping[str, float]) -> None")

    def histogram(self, step: int, name: str, values: Values) -> None:
        """Take many values of one step; sinks that cannot show them leave them."""
        return

    def close(self) -> None:
        """Finish what is open; nothing is written afterwards."""
        raise NotImplementedError("close() -> None")


def finite(values: Values) -> npt.NDArray[np.float64]:
    """The values that a histogram can hold, flat.

    >>> finite([1.0, float("nan"), 2.0, float("inf")]).tolist()
    [1.0, 2.0]
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]
