"""Results of several seeds together: means, interquartile means, and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class SeedResult:
    """The result of the run with one seed.

    Attributes:
        status: "finished", "stopped" or "failed".
        score: Mean return of its last episodes; None if none ended.
        steps: Agent steps.
        steps_to_best: Agent steps at its highest mean return; None if no episode ended.
        seconds: Wall-clock time.
    """

    seed: int
    run: str
    status: str
    score: float | None
    steps: int
    steps_to_best: int | None
    seconds: float


def mean(scores: Floats) -> Floats:
    """Return the mean along the last axis."""
    found: Floats = scores.mean(-1)
    return found


def interquartile_mean(scores: Floats) -> Floats:
    """Return the mean without the lowest and the highest quarter, along the last axis.

    A quarter is rounded down: of fewer than four scores none is left out.

    >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 3.0, 1000.0])))
    2.0
    """
    cut = scores.shape[-1] // 4
    kept: Floats = np.sort(scores, -1)[..., cut : scores.shape[-1] - cut].mean(-1)
    return kept


def bootstrap_interval(
    groups: Sequence[Sequence[float]],
    statistic: Statistic = interquartile_mean,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % confidence interval of a statistic, by the percentile bootstrap.

    Args:
        groups: Scores of each environment; resamples are drawn within each, so that every one
            keeps its weight.
        statistic: Maps scores to a number, along the last axis.
        resamples: Number of resamples.
        seed: Seed of the resamples.

    >>> bootstrap_interval([[1.0, 1.0, 1.0]])
    (1.0, 1.0)
    """
    if not groups or not all(groups):
        raise UsageError("scores: given none of some environment; allowed: one or more of each.")
    random = np.random.default_rng(seed)
    drawn = [
        np.asarray(group, np.float64)[random.integers(len(group), size=(resamples, len(group)))]
        for group in groups
    ]
    found = statistic(np.concatenate(drawn, 1))  # [resamples]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def summary(results: Sequence[SeedResult]) -> dict[str, Any]:
    """Return statistics of the seeds that finished with a score; None where there are none."""
    scores = [r.score for r in results if r.status == "finished" and r.score is not None]
    found: dict[str, Any] = {"seeds": len(results), "finished": len(scores)}
    for name, statistic in (("mean", mean), ("iqm", interquartile_mean)):
        found[name] = float(statistic(np.array(scores))) if scores else None
        several = len(scores) > 1  # one score says nothing of how much scores differ
        found[f"{name}_interval"] = bootstrap_interval([scores], statistic) if several else None
    return found
