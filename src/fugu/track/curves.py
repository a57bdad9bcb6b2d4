"""Learning curves: a metric against steps, read from runs and drawn by matplotlib."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fugu.core.errors import MissingExtraError, UsageError
from fugu.track.sinks import RESERVED, read_metrics

Array = npt.NDArray[np.float64]
POINTS = 200
COLOURS = (
    *("#2a9d8f", "#e76f51", "#5b6ee1", "#e9a23b", "#b5479b"),
    *("#6a994e", "#577590", "#8d5a3b", "#c1121f", "#7f7f7f"),
)
ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Curve:
    """One metric of a run, or of several runs of one environment."""

    label: str
    steps: Array  # [points]
    values: Array  # [points]
    spread: Array  # [points], the standard deviation across runs; zeros for one run
    runs: int = 1


def read_curve(path: Path, metric: str, label: str) -> Curve:
    """Return the curve of a metric in a file of metrics.

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
    """Return the mean of several runs at the steps that all of them reached, and its spread.

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
    nearest = difflib.get_close_matches(metric, names, n=1, cutoff=0.0)[0]
    return UsageError(
        f"metric: given {metric!r}, which run {label} lacks; nearest: {nearest!r}; "
        f"allowed: {', '.join(sorted(names))}."
    )


def check_picture(path: Path) -> None:
    """Raise if no picture can be written there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot")
    if path.suffix not in ENDINGS:
        raise UsageError(f"out: given {str(path)!r}; allowed: a name with {', '.join(ENDINGS)}.")
    if not path.parent.is_dir():
        raise UsageError(f"out: given {str(path)!r}; allowed: a name in a folder that exists.")


def draw_curves(curves: Sequence[Curve], metric: str, path: Path) -> None:
    """Write the curves, each with the band of one standard deviation across its runs."""
    check_picture(path)
    figures: Any = importlib.import_module("matplotlib.figure")
    # A figure of its own: no window, and nothing of the caller's matplotlib is touched.
    figure = figures.Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        seeds = f" (mean of {curve.runs} runs, ± 1 std)" if curve.runs > 1 else ""
        alone = "o" if len(curve.steps) == 1 else ""
        axes.plot(curve.steps, curve.values, alone, color=colour, label=curve.label + seeds, lw=1.8)
        if curve.runs > 1:
            low, high = curve.values - curve.spread, curve.values + curve.spread
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.18, lw=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(metric.replace("_", " "))
    axes.xaxis.set_major_formatter(lambda steps, _: step_label(steps))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e8eb", lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


def step_label(count: float) -> str:
    """Return a number of steps as the label of an axis.

    >>> step_label(2_500_000), step_label(40_000), step_label(0)
    ('2.5M', '40k', '0')
    """
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= limit:
            return f"{count / limit:g}{letter}"
    return f"{count:g}"
