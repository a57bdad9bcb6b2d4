"""A picture of a tuning, drawn by matplotlib."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.vector.tuning.records import Profile, Tuning
from fugu.vector.tuning.showing import curve, duration, label, ranked

CHOSEN, OTHER = "#2a9d5c", "#9aa5b1"


def check_picture(path: Path) -> None:
    """Raise if no picture can be written there, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot")
    if path.suffix != ".png":
        raise UsageError(f"png: given {str(path)!r}; allowed: a name that ends with .png.")
    if not path.parent.is_dir():
        raise UsageError(f"png: given {str(path)!r}; allowed: a name in a folder that exists.")


def draw_picture(tuning: Tuning, path: Path) -> None:
    """Write it: on the left what was tried, on the right how long steps take."""
    check_picture(path)
    figures: Any = importlib.import_module("matplotlib.figure")
    # A figure of its own: no window, and nothing of the caller's matplotlib is touched.
    figure = figures.Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_trials(left, tuning)
    _draw_steps(right, tuning.profile)
    figure.suptitle(f"{tuning.env} on {tuning.machine.cores} cores: {tuning.choice}")
    figure.savefig(path, dpi=120)


def _draw_trials(axes: Any, tuning: Tuning) -> None:
    """Steps a second, with the range of the windows as whiskers."""
    trials = [trial for trial in ranked(tuning) if trial.status == "measured"][::-1]
    rates = [trial.steps_per_second for trial in trials]
    below = [trial.steps_per_second - min(trial.windows) for trial in trials]
    above = [max(trial.windows) - trial.steps_per_second for trial in trials]
    colours = [CHOSEN if trial.setting == tuning.choice else OTHER for trial in trials]
    names = [label(trial.setting) for trial in trials]
    axes.barh(names, rates, color=colours, xerr=[below, above], ecolor="#444444", capsize=2)
    axes.set_xlabel("steps per second (median, and the range of the windows)")
    axes.xaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_steps(axes: Any, profile: Profile) -> None:
    """The share of steps that take no longer than a time."""
    times, shares = curve(profile)
    axes.plot([max(time, 1e-9) for time in times], shares, color=CHOSEN)
    axes.axvline(profile.steps.mean, color=OTHER, linestyle="--")
    axes.text(profile.steps.mean, 2, f" mean {duration(profile.steps.mean)}", color="#555555")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda seconds, _: duration(seconds))
    axes.xaxis.set_minor_formatter(lambda seconds, _: "")
    axes.set_xlabel("time of a step of one copy, alone")
    axes.set_ylabel("steps that take no longer, %")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
