"""A run on the terminal: how far, how fast, how well."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live

from fugu.track.panel import WIDTH, View, picture, share_done, time_left
from fugu.track.snapshot import History, Snapshot
from fugu.track.text import duration, number, rate
from fugu.track.usage import Meter

REFRESH_SECONDS = 1.0  # a drawing takes some milliseconds, and less than 1 % is what it may cost
PLAIN_SECONDS = 10.0


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
        """Begin to draw."""
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
        """What would be drawn for a snapshot now."""
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
    """One line for files and pipes.

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
