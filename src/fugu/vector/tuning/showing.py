"""Showing a tuning in the terminal: progress, tables, a plot."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fugu.vector.tuning.records import Profile, Setting, Trial, Tuning
from fugu.vector.tuning.tuner import Report

BAR_WIDTH = 20
PLOT_HEIGHT = 16
_ORDER = {"measured": 0, "failed": 1, "ruled out": 2}
_NUMBERS = ("num_workers", "num_envs", "batch_size")
_STYLES = {"measured": "", "failed": "red", "ruled out": "dim"}


@contextmanager
def progress(show: bool) -> Iterator[Report]:
    """Shows how far the measuring is, on standard error; does nothing unless `show`."""
    if not show:
        yield lambda text, done, total: None
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=BAR_WIDTH),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # Redrawn seldom: drawing takes time from what is measured.
    console = Console(stderr=True)
    shown = Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=2,
        disable=not console.is_terminal,
    )
    with shown:
        task = shown.add_task("", total=1)
        yield lambda text, done, total: shown.update(
            task, description=text, completed=done, total=total
        )


def show_tuning(tuning: Tuning, console: Console | None = None) -> None:
    """Print the profile, what was tried, a plot, and the choice."""
    console = console or Console()
    console.print(profile_table(tuning))
    console.print(trial_table(tuning))
    console.print(plot(tuning, console.width))
    console.print(Text(f"Choice: {tuning.summary}", style="green"), soft_wrap=True)
    if tuning.machine.busy:
        warning = (
            f"Other programs ran meanwhile (load {tuning.machine.load:.1f} on "
            f"{tuning.machine.cores} cores): tune again when this machine is quiet."
        )
        console.print(Text(warning, style="yellow"), soft_wrap=True)


# ------------------------------------------------------------------ tables


def profile_table(tuning: Tuning) -> Table:
    """One copy, alone."""
    machine = tuning.machine
    table = Table(title=f"fugu.autotune: {tuning.env}", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _profile_rows(tuning.profile):
        table.add_row(name, Text(value))
    cores = f"{machine.cores} cores, {size(machine.memory)} free, {machine.system}"
    table.add_row("machine", Text(cores))
    return table


def _profile_rows(profile: Profile) -> Iterator[tuple[str, str]]:
    steps = profile.steps
    yield (
        "step",
        f"{duration(steps.mean)} on average, median {duration(steps.median)}, deviation "
        f"{duration(steps.deviation)}, 99 % within {duration(steps.percentile_99)} "
        f"({steps.count:,} steps)",
    )
    share = f"{profile.reset_share:.0%} of the time" if profile.steps_per_episode else "none came"
    yield "reset", f"{duration(profile.reset_seconds)}, {share}"
    length = profile.steps_per_episode
    yield "episode", f"{length:,.0f} steps" if length else f"more than {steps.count:,} steps"
    copies = "unknown" if profile.copy_bytes is None else size(profile.copy_bytes)
    yield "memory of a copy", f"{copies}, and {size(profile.slab_bytes)} of rows"
    gain = profile.thread_gain
    yield "two threads", "unknown" if gain is None else f"{gain:.2f}x one: {_lock(gain)}"
    yield "policy", f"{duration(profile.policy_seconds)} a batch"
    for note in profile.notes:
        yield "note", headline(note)


def _lock(gain: float) -> str:
    return "stepping holds the GIL" if gain < 1.3 else "stepping releases the GIL"


def trial_table(tuning: Tuning) -> Table:
    """What was tried, the fastest first, and what was not."""
    table = Table()
    for name in ("backend", "workers", "copies", "batch", "steps/s"):
        table.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    table.add_column("", min_width=BAR_WIDTH, overflow="fold")
    best = max(trial.steps_per_second for trial in tuning.trials)
    for _, alike in groupby(ranked(tuning), _line):
        trials = list(alike)
        settings = [trial.setting for trial in trials]
        columns = [[getattr(s, name) for s in settings] for name in _NUMBERS]
        numbers = [", ".join(map(str, sorted(set(column)))) for column in columns]
        trial = trials[0]
        rate = f"{trial.steps_per_second:,.0f}" if trial.status == "measured" else ""
        style = "bold green" if tuning.choice in settings else _STYLES[trial.status]
        backend = Text(trial.setting.backend)
        table.add_row(backend, *numbers, rate, _outcome(trial, best), style=style)
        if trial.status == "measured" and trial.note:
            table.add_row("", "", "", "", "", Text(trial.note))
    return table


def _line(trial: Trial) -> tuple[Any, ...]:
    """What is shown in one line: a trial that was measured, or all that went alike."""
    if trial.status == "measured":
        return (trial.setting,)
    return trial.status, trial.setting.backend, trial.note


def _outcome(trial: Trial, best: float) -> RenderableType:
    if trial.status == "measured":
        return Bar(best, 0, trial.steps_per_second, width=BAR_WIDTH)
    return Text(f"{trial.status}: {headline(trial.note)}")


def ranked(tuning: Tuning) -> list[Trial]:
    """The trials as people read them: fastest first, then failures, then what was ruled out."""

    def rank(trial: Trial) -> tuple[Any, ...]:
        order = _ORDER[trial.status]
        return order, -trial.steps_per_second, trial.setting.backend, trial.note

    return sorted(tuning.trials, key=rank)


# ------------------------------------------------------------------ plots


def plot(tuning: Tuning, width: int) -> RenderableType:
    """The step times as a curve, or as bars where plotext is missing."""
    try:
        plotext: Any = importlib.import_module("plotext")
    except ImportError:
        return _step_bars(tuning.profile)
    times, shares = curve(tuning.profile)
    plotext.clear_figure()
    plotext.plotsize(min(width, 80), PLOT_HEIGHT)
    plotext.theme("clear")
    plotext.title("steps that take no longer, %")
    plotext.xlabel("microseconds")
    plotext.xscale("log")
    plotext.yticks(range(0, 101, 25))
    plotext.plot([t * 1e6 for t in times], shares, marker="braille")
    drawn = plotext.build()
    plotext.clear_figure()
    return Text.from_ansi(drawn)


def _step_bars(profile: Profile) -> Table:
    table = Table(box=None, show_header=False, title="step times", title_justify="left")
    steps, slowest = profile.steps, profile.steps.quantiles[-1]
    for name, seconds in {
        "quickest": steps.quantiles[0],
        "median": steps.median,
        "mean": steps.mean,
        "99 % within": steps.percentile_99,
        "slowest": slowest,
    }.items():
        table.add_row(name, duration(seconds), Bar(slowest, 0, seconds, width=2 * BAR_WIDTH))
    return table


def curve(profile: Profile) -> tuple[list[float], list[float]]:
    """Step times, and the share of steps that take no longer, in per cent."""
    *times, slowest = profile.steps.quantiles
    shares = [100 * i / len(times) for i in range(len(times))]
    return [*times, profile.steps.percentile_99, slowest], [*shares, 99, 100]


# ------------------------------------------------------------------ words


def label(setting: Setting) -> str:
    """A setting in little room."""
    if setting.backend == "serial":
        return f"serial, {setting.num_envs}"
    return f"{setting.backend} x{setting.num_workers}, {setting.batch_size} of {setting.num_envs}"


def headline(note: str) -> str:
    """The line of a long note that says most: what was raised, else the first."""
    lines = [line for line in note.strip().splitlines() if line.strip()] or [""]
    raised = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return raised[-1] if raised else lines[0]


def duration(seconds: float) -> str:
    """A time in units that fit.

    >>> duration(2.5e-6), duration(0.0123), duration(3.0), duration(0.0)
    ('2.5 us', '12.3 ms', '3.00 s', '0 s')
    """
    if seconds == 0:
        return "0 s"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def size(count: int) -> str:
    """A number of bytes in units that fit.

    >>> size(100), size(2500), size(3 << 20), size(5 << 30)
    ('100 B', '2.4 KiB', '3.0 MiB', '5.0 GiB')
    """
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
