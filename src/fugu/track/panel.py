"""The dashboard's picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.align import Align
from rich.bar import Bar
from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fugu.track.snapshot import Snapshot
from fugu.track.text import duration, number, rate, size, sparkline
from fugu.track.usage import Usage

ACCENT, QUIET, LINE = "#2ab7a9", "#7d8a97", "#3b4754"
PHASES = ("#2ab7a9", "#f4a259", "#8e7dbe", "#5b8def", "#e86a92", "#9bc53d", "#c9ada7")
WIDTH, MOST_ROWS, MOST_LOSSES, MOST_NOTES = 96, 8, 12, 4


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
    """The whole dashboard, at most that many columns wide."""
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
    """Seconds until the last step at this speed; infinite if nothing moves."""
    left = max(total_steps - snapshot.steps, 0)
    if not left:
        return 0.0
    return left / snapshot.steps_per_second if snapshot.steps_per_second > 0 else float("inf")


def share_done(total_steps: int, snapshot: Snapshot) -> float:
    """From 0 to 1."""
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
    lines = [Text(f"• {note}", QUIET, overflow="ellipsis", no_wrap=True) for note in notes]
    return Group(*(Align.left(line) for line in lines[-MOST_NOTES:]))


def _heading(words: str) -> Text:
    return Text(words, f"{QUIET} italic")
