"""Numbers that change in the course of a run: pure functions of its progress from 0 to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fugu.algos.optimisers import OptimiserConfig, ScheduleKind
from fugu.native.arrays import refuse

RATE_STEP, RATE_SCALES = 1.5, (0.01, 10.0)


@dataclass(frozen=True)
class Schedule:
    """A number that rises to `initial` during the warmup and then goes on to `final`.

    >>> entropy = Schedule(initial=0.02, final=0.0, kind="linear")
    >>> entropy(0.0), entropy(0.5), entropy(1.0)
    (0.02, 0.01, 0.0)
    >>> Schedule(1.0, 0.0, "cosine", warmup=0.5)(0.25)
    0.5
    """

    initial: float
    """The number at the beginning, or at the warmup's end."""
    final: float = 0.0
    """The number at the end; a constant one never gets there."""
    kind: ScheduleKind = "constant"
    """constant, linear, or half a wave of a cosine."""
    warmup: float = 0.0
    """The share of the run in which the number rises from 0 to `initial`."""

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine"):
            raise refuse("kind", f"{self.kind!r}", "'constant', 'linear' or 'cosine'")
        if not 0.0 <= self.warmup <= 1.0:
            raise refuse("warmup", f"{self.warmup}", "0 to 1, a share of the run")

    def __call__(self, progress: float, reached: float | None = None) -> float:
        """Return the number for an update.

        Args:
            progress: The share of the run at the start of the update; 1 stands for all beyond.
            reached: The share at its end, which the warmup follows, so that the first update of a
                run has more than 0; the same as `progress` if not given.
        """
        if not progress >= 0.0:
            raise refuse("progress", f"{progress}", "0 to 1")
        if progress < self.warmup:
            reached = progress if reached is None else max(progress, reached)
            return self.initial * min(1.0, reached / self.warmup)
        if self.kind == "constant":
            return self.initial
        if progress >= 1.0:
            return self.final
        way = (progress - self.warmup) / (1.0 - self.warmup)
        if self.kind == "cosine":
            way = 0.5 - 0.5 * math.cos(math.pi * way)
        return self.initial + (self.final - self.initial) * way


def learning_rate_at(progress: float, cfg: OptimiserConfig, reached: float | None = None) -> float:
    """Return the learning rate of an update; see `Schedule` for the arguments.

    >>> cfg = OptimiserConfig(learning_rate=0.01, schedule="linear", warmup=0.2, final_share=0.1)
    >>> [round(learning_rate_at(progress, cfg), 6) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.005, 0.01, 0.0055, 0.001]
    >>> round(learning_rate_at(0.0, cfg, reached=0.05), 6)  # the first of four updates of warmup
    0.0025
    """
    rate = cfg.learning_rate
    return Schedule(rate, rate * cfg.final_share, cfg.schedule, cfg.warmup)(progress, reached)


@dataclass
class AdaptiveRate:
    """A factor of the scheduled learning rate that follows the measured KL divergence.

    Attributes:
        scale: The factor, from 0.01 to 10.

    >>> rate = AdaptiveRate()
    >>> rate.adapt(measured=0.05, desired=0.01)
    >>> round(rate.scale, 3)
    0.667
    """

    scale: float = 1.0

    def adapt(self, measured: float, desired: float) -> None:
        """Divide by 1.5 above twice the desired divergence; multiply by it below half of it."""
        if measured > 2.0 * desired:
            self.scale /= RATE_STEP
        elif measured < desired / 2.0:
            self.scale *= RATE_STEP
        self.scale = min(max(self.scale, RATE_SCALES[0]), RATE_SCALES[1])
