"""A metric against steps, of one run or of several together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fugu.core.errors import UsageError, nearest_names
from fugu.track.jsonl import RESERVED, read_metrics

Array = npt.NDArray[np.float64]
POINTS = 200


@dataclass(frozen=True)
class Curve:
    """One metric of a run, or of several runs of one environment."""

    label: str
    steps: Array  # [points]
    values: Array  # [points]
    spread: Array  # [points], the standard deviation across runs; zeros for one run
    runs: int = 1


def read_curve(path: Path, metric: str, label: str) -> Curve:
    """The curve of a metric in a file of metrics.

    Raises:
        UsageError: The file has no such metric; it names the nearest.
    """
    points, names = [], dict[str, None]()
    for entry in read_metrics(path):
        names.update(dict.fromkeys(entry))
        value = entry.get(metric)
        if value is not None:
            points.append((float(entry["step"] or 0), float(value)))
    if not points:
        raise _missing(label, metric, [name for name in names if name not in RESERVED])
    steps, values = np.array(points, dtype=np.float64).T
    return Curve(label, steps, values, np.zeros_like(values))


def average(curves: Sequence[Curve], label: str) -> Curve:
    """The mean of several runs at the steps that all of them reached, and its spread.

    >>> one = Curve("a", np.array([0.0, 10.0]), np.array([0.0, 1.0]), np.zeros(2))
    >>> two = Curve("b", np.array([0.0, 10.0]), np.array([2.0, 3.0]), np.zeros(2))
    >>> mean = average([one, two], "both")
    >>> float(mean.values[0]), float(mean.values[-1]), float(mean.spread[0]), mean.runs
    (1.0, 2.0, 1.0, 2)
    """
    start = max(curve.steps[0] for curve in curves)
    end = min(curve.steps[-1] for curve in curves)
    if start > end:
        names = ", ".join(curve.label for curve in curves)
        raise UsageError(f"runs: given {names}, which share no steps; allowed: runs that do.")
    grid = np.linspace(start, end, POINTS)
    rows = np.stack([np.interp(grid, curve.steps, curve.values) for curve in curves])
    return Curve(label, grid, rows.mean(axis=0), rows.std(axis=0), len(curves))


def _missing(label: str, metric: str, names: Sequence[str]) -> UsageError:
    if not names:
        return UsageError(f"run {label}: it has no metrics yet. Wait, or choose another run.")
    if metric in names:
        return UsageError(f"run {label}: {metric} is never a number. Choose another metric.")
    nearest = nearest_names(metric, names)[0]
    return UsageError(
        f"metric: given {metric!r}, which run {label} lacks; nearest: {nearest!r}; "
        f"allowed: {', '.join(sorted(names))}."
    )
