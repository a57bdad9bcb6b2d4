"""Learning curves as a picture, drawn by matplotlib."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.track.curves import Curve

COLOURS = ("#2a9d8f", "#e76f51", "#5b6ee1", "#e9a23b", "#b5479b", "#6a994e", "#577590")
ENDINGS = (".png", ".svg", ".pdf")


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
