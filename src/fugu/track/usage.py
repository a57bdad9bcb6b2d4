"""What of the machine is in use."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fugu.core import machine

_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Usage:
    """How busy the machine is."""

    cores: int
    """Cores there are."""
    busy: float
    """Share of all cores in use, from 0 to 1: by all programs, or by this one where only that is
    known."""
    own_memory: int
    """Bytes of this process."""
    used_memory: int
    """Bytes in use by all programs."""
    total_memory: int
    """Bytes there are."""


class Meter:
    """Reads the usage since it was read last."""

    def __init__(self) -> None:
        self._cores = os.cpu_count() or 1
        self._last = self._times()

    def read(self) -> Usage:
        """The usage since the last call."""
        now, last = self._times(), self._last
        span = now[1] - last[1]
        busy = (now[0] - last[0]) / span if span > 0 else 0.0
        self._last = now
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Usage(
            cores=self._cores,
            busy=min(max(busy, 0.0), 1.0),
            own_memory=machine.own_memory(),
            used_memory=max(total - machine.free_memory(), 0),
            total_memory=total,
        )

    def _times(self) -> tuple[float, float]:
        """Time in use and time in all, of all cores together."""
        if not _STAT.is_file():
            return time.process_time(), time.monotonic() * self._cores
        # user nice system idle iowait irq softirq steal: the rest is counted in user already
        ticks = [int(part) for part in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
        return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))
