"""What the dashboard is told, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Snapshot:
    """How a run stands at one moment."""

    steps: int
    """Environment steps so far."""
    steps_per_second: float
    """Lately."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, of the run or since the last snapshot: their shares are shown."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Of the last update."""
    episodes: Mapping[str, float] = field(default_factory=dict)
    """Statistics of episodes, such as their mean return."""
    notes: tuple[str, ...] = ()
    """Lines to show below, such as faults that were mended."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Metrics that callbacks log."""


class History:
    """A whole curve in few numbers: when it is full, neighbours are averaged.

    >>> history = History(4)
    >>> for value in range(8):
    ...     history.add(value)
    >>> history.values
    [0.5, 2.5, 4.5, 6.5]
    """

    def __init__(self, capacity: int = 128) -> None:
        self._capacity, self._stride = capacity, 1
        self.values: list[float] = []
        self._open: list[float] = []

    def add(self, value: float) -> None:
        """Take the next value of the curve."""
        self._open.append(float(value))
        if len(self._open) < self._stride:
            return
        if len(self.values) == self._capacity:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [(first + second) / 2 for first, second in pairs]
            self._stride *= 2
            if len(self._open) < self._stride:
                return
        self.values.append(sum(self._open) / len(self._open))
        self._open = []
