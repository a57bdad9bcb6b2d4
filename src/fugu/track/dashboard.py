"""The dashboard: a run on the terminal, with its progress, speed and scores."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rich.bar import Bar
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fugu.core.machine import free_memory, own_memory
from fugu.track.text import duration, number, rate, size, sparkline

REFRESH_SECONDS = 1.0  # a drawing takes some milliseconds, and less than 1 % is what it may cost
PLAIN_SECONDS = 10.0
ACCENT, QUIET, LINE = "#2ab7a9", "#7d8a97", "#3b4754"
PHASES = ("#2ab7a9", "#f4a259", "#8e7dbe", "#5b8def", "#e86a92", "#9bc53d", "#c9ada7")
WIDTH, MOST_ROWS, MOST_LOSSES, MOST_NOTES = 96, 8, 12, 4
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Snapshot:
    """State of a run at one moment."""

    steps: int
    """Environment steps so far."""
    steps_per_second: float
    """Recent speed."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, of the run or since the last snapshot: their shares are shown."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Losses of the last update."""
    episodes: Mapping[str, float] = field(default_factory=dict)
    """Statistics of episodes, such as their mean return."""
    notes: tuple[str, ...] = ()
    """Lines to show below, such as faults that were repaired."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Metrics that callbacks log."""


class History:
    """A whole curve in few numbers: when it is full, neighbors are averaged.

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


@dataclass(frozen=True)
class Usage:
    """How busy the machine is."""

    cores: int
    busy: float  # share of all cores, by all programs or, if only that is known, by this one
    own_memory: int  # bytes of this process
    used_memory: int  # bytes, by all programs
    total_memory: int  # bytes


class Meter:
    """Measures the usage of the machine."""

    def __init__(self) -> None:
        self._cores = os.cpu_count() or 1
        self._last = self._times()

    def read(self) -> Usage:
        """Return the usage since the last call."""
        now, last = self._times(), self._last
        span = now[1] - last[1]
        busy = (now[0] - last[0]) / span if span > 0 else 0.0
        self._last = now
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Usage(
            cores=self._cores,
            busy=min(max(busy, 0.0), 1.0),
            own_memory=own_memory(),
            used_memory=max(total - free_memory(), 0),
            total_memory=total,
        )

    def _times(self) -> tuple[float, float]:
        """Time in use and time in all, of all cores together."""
        if not _STAT.is_file():
            return time.process_time(), time.monotonic() * self._cores
        # user nice system idle iowait irq softirq steal: the rest is counted in user already
        ticks = [int(part) for part in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
        return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))


class Dashboard:
    """Shows snapshots of a run as they come, at most one a second.

    Where the output is no terminal, a plain line goes to stderr every ten seconds instead.

    Args:
        total_steps: Steps at which the run ends.
        name: What is trained.
        console: Where to draw; the process's own output if not given.
    """

    def __init__(self, total_steps: int, name: str, console: Console | None = None) -> None:
        self._total, self._name = total_steps, name
        self._console = console or Console()
        self._interval = REFRESH_SECONDS if self._console.is_terminal else PLAIN_SECONDS
        self._live: Live | None = None
        self._meter = Meter()
        self._histories: dict[str, History] = {}
        self._snapshot: Snapshot | None = None
        self._start = time.monotonic()
        self._due = self._start
        self._shown: Snapshot | None = None

    def __enter__(self) -> Dashboard:
        """Start to draw."""
        self._start = self._due = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Show how it ended, and leave that on the screen."""
        # A picture that fails must not hide why the run did.
        with contextlib.suppress(Exception):
            if self._snapshot is not self._shown:
                self._show()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, snapshot: Snapshot) -> None:
        """Take a snapshot; it is drawn if the last drawing is long enough ago."""
        self._snapshot = snapshot
        if time.monotonic() >= self._due:
            self._show()

    def view(self, snapshot: Snapshot) -> View:
        """Return what would be drawn for a snapshot now."""
        for name, value in snapshot.episodes.items():
            self._histories.setdefault(name, History()).add(value)
        return View(
            name=self._name,
            total_steps=self._total,
            seconds=time.monotonic() - self._start,
            snapshot=snapshot,
            usage=self._meter.read(),
            histories={name: history.values for name, history in self._histories.items()},
        )

    def _show(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        self._shown = snapshot
        if self._live is not None:
            width = min(WIDTH, self._console.width)
            self._live.update(picture(self.view(snapshot), width), refresh=True)
        elif not self._console.is_terminal:
            print(plain_line(self._name, self._total, snapshot), file=sys.stderr, flush=True)
        self._due = time.monotonic() + self._interval


def plain_line(name: str, total_steps: int, snapshot: Snapshot) -> str:
    """Return one line for files and pipes.

    >>> plain_line("breakout", 1000, Snapshot(250, 50.0, episodes={"episode_return": 1.5}))
    'breakout: 250 of 1,000 steps (25%), 50 steps/s, 00:15 left, episode_return 1.5'
    """
    facts = [
        f"{snapshot.steps:,} of {total_steps:,} steps ({share_done(total_steps, snapshot):.0%})",
        f"{rate(snapshot.steps_per_second)} steps/s",
        f"{duration(time_left(total_steps, snapshot))} left",
        *(f"{key} {number(value)}" for key, value in snapshot.episodes.items()),
        *(f"{key} {number(value)}" for key, value in snapshot.logged.items()),
    ]
    return f"{name}: {', '.join(facts)}"


@dataclass(frozen=True)
class View:
    """All that is shown at one moment."""

    name: str
    total_steps: int
    seconds: float
    snapshot: Snapshot
    usage: Usage
    histories: Mapping[str, Sequence[float]]


def picture(view: View, width: int = WIDTH) -> RenderableType:
    """Return the whole dashboard, at most `width` columns wide."""
    parts: list[RenderableType] = [_progress(view), _figures(view)]
    shown = view.snapshot
    if shown.phases or shown.losses:
        columns = Table.grid(expand=True, padding=(0, 2))
        columns.add_column(ratio=3)
        columns.add_column(ratio=2)
        columns.add_row(_phases(shown.phases), _numbers("losses", shown.losses))
        parts.append(columns)
    if shown.episodes:
        parts.append(_episodes(view, width))
    if shown.logged:
        parts.append(_numbers("logged", shown.logged))
    if shown.notes:
        parts.append(_notes(shown.notes))
    return Panel(
        Group(*(Padding(part, (0, 0, int(part is not parts[-1]), 0)) for part in parts)),
        title=Text.assemble(("fugu ", f"bold {ACCENT}"), (view.name, "bold default")),
        title_align="left",
        subtitle=Text(duration(view.seconds), QUIET),
        subtitle_align="right",
        border_style=LINE,
        box=ROUNDED,
        padding=(1, 2),
        width=width,
    )


def time_left(total_steps: int, snapshot: Snapshot) -> float:
    """Return the seconds until the last step at this speed; infinite if nothing moves."""
    left = max(total_steps - snapshot.steps, 0)
    if not left:
        return 0.0
    return left / snapshot.steps_per_second if snapshot.steps_per_second > 0 else float("inf")


def share_done(total_steps: int, snapshot: Snapshot) -> float:
    """Return the share of the run that is done, from 0 to 1."""
    return min(snapshot.steps / total_steps, 1.0) if total_steps > 0 else 1.0


def _progress(view: View) -> RenderableType:
    steps, share = view.snapshot.steps, share_done(view.total_steps, view.snapshot)
    words = Table.grid(expand=True)
    words.add_column()
    words.add_column(justify="right")
    words.add_row(
        Text.assemble((f"{steps:,}", "bold"), (f" of {view.total_steps:,} steps", QUIET)),
        Text(f"{share:.0%}", f"bold {ACCENT}"),
    )
    bar = ProgressBar(
        total=1.0, completed=share, style=LINE, complete_style=ACCENT, finished_style=ACCENT
    )
    return Group(words, bar)


def _figures(view: View) -> RenderableType:
    """The numbers that people look for first, large in a row."""
    usage = view.usage
    figures = [
        (rate(view.snapshot.steps_per_second), "steps/s"),
        (duration(time_left(view.total_steps, view.snapshot)), "left"),
        (f"{usage.busy:.0%}", f"of {usage.cores} cores"),
        (size(usage.own_memory), f"{size(usage.used_memory)} of {size(usage.total_memory)} used"),
    ]
    grid = Table.grid(expand=True, padding=(0, 1))
    for _ in figures:
        grid.add_column(ratio=1)
    grid.add_row(*(Text(value, "bold") for value, _ in figures))
    grid.add_row(*(Text(words, QUIET) for _, words in figures))
    return grid


def _phases(phases: Mapping[str, float]) -> RenderableType:
    """Shares of the time, the longest first."""
    total = sum(phases.values()) or 1.0
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", min_width=4)
    ranked = sorted(phases.items(), key=lambda item: -item[1])
    colours = {name: PHASES[index % len(PHASES)] for index, name in enumerate(sorted(phases))}
    for name, seconds in ranked[:MOST_ROWS]:
        bar = Bar(1.0, 0.0, seconds / total, color=colours[name])
        grid.add_row(Text(name), bar, Text(f"{seconds / total:.0%}", QUIET))
    return Group(_heading("time"), grid)


def _numbers(heading: str, numbers: Mapping[str, float]) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True, ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    for name, value in list(numbers.items())[:MOST_LOSSES]:
        grid.add_row(Text(name), Text(number(value), "bold" if value == value else "bold red"))
    return Group(_heading(heading), grid)


def _episodes(view: View, width: int) -> RenderableType:
    """The values of now, their curves over the whole run, and between what they were.

    Entries of one family (`verdict/passed`, `verdict/wrong`) share a line.
    """
    alone, families = _by_family(view.snapshot.episodes)
    curve_width = max(width - 56, 8)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, min_width=9)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, ratio=1)
    for name, value in list(alone.items())[:MOST_ROWS]:
        past = [point for point in view.histories.get(name, ()) if math.isfinite(point)]
        curve = Text(sparkline(past, curve_width), ACCENT, overflow="crop")
        span = f"{number(min(past))} to {number(max(past))}" if past else ""
        grid.add_row(Text(name), Text(number(value), "bold"), curve, Text(span, QUIET))
    lines = [_family(name, members) for name, members in list(families.items())[:MOST_ROWS]]
    return Group(_heading("episodes"), grid, *lines)


def _by_family(
    episodes: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Entries without a family, and the others by it."""
    alone: dict[str, float] = {}
    families: dict[str, dict[str, float]] = {}
    for name, value in episodes.items():
        family, slash, member = name.partition("/")
        if slash:
            families.setdefault(family, {})[member] = value
        else:
            alone[name] = value
    return alone, families


def _family(name: str, members: Mapping[str, float]) -> Text:
    """The largest first; what are shares of a whole, as such and without those that are none."""
    shares = min(members.values()) >= 0.0 and math.isclose(sum(members.values()), 1.0, abs_tol=1e-3)
    parts: list[tuple[str, str]] = [(f"{name} ", "default")]
    for member, value in sorted(members.items(), key=lambda item: -item[1]):
        if not shares or value > 0.0:
            told = f"{value:.1%}" if shares else number(value)
            parts += [(f" {member} ", QUIET), (told, "bold")]
    return Text.assemble(*parts)


def _notes(notes: Sequence[str]) -> RenderableType:
    lines = (Text(f"• {note}", QUIET, overflow="ellipsis", no_wrap=True) for note in notes)
    return Group(*list(lines)[-MOST_NOTES:])


def _heading(words: str) -> Text:
    return Text(words, f"{QUIET} italic")
