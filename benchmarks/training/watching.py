"""What every library's script shares: its settings, the watch that times it, and its one answer.

Needs nothing but Python, for any venv.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

RECENT = 100  # episodes that a return is the mean of
SOLVED = 475.0
WARM_UPDATES, WARM_SECONDS = 2, 1.0


def read_settings() -> dict[str, Any]:
    """What the command line asks for, as JSON."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def answer(**figures: Any) -> None:
    """Print the result and end at once, with the threads and processes that some leave behind."""
    print("RESULT " + json.dumps(figures), flush=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class Watch:
    """Times training by `goal`: its steady rate, or the seconds until CartPole is solved.

    A rate is counted between two updates, after those that warm up: for so many seconds, or, where
    settings have `steps`, for so many steps after `warm` updates. Solved means that the last
    hundred episodes of training (as many as ended beside the hundredth, too) returned 475 on
    average, or what settings have as `score`. The watch starts when the library is told to train:
    imports are not counted.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.solves = settings["goal"] == "solve"
        self._seconds: float = settings["seconds"]
        self._score: float = settings.get("score", SOLVED)
        self._steps: int | None = settings.get("steps")
        self._warm: int = settings.get("warm", WARM_UPDATES)
        self._began = time.perf_counter()
        self._updates = 0
        self._mark: tuple[float, int] | None = None  # when warm, and the steps by then
        self._recent: deque[tuple[int, float]] = deque()
        self._figures: dict[str, float | None] = {}

    def note(self, mean_return: float, episodes: int = 1) -> None:
        """Episodes that ended."""
        self._recent.append((episodes, mean_return))
        while sum(count for count, _ in self._recent) - self._recent[0][0] >= RECENT:
            self._recent.popleft()

    def note_last(self, returns: Iterable[float]) -> None:
        """The last episodes, from a library that tells all of them each time."""
        self._recent.clear()
        for value in returns:
            self.note(float(value))

    def done(self, steps: int) -> bool:
        """Whether training may end now, after so many steps; to be asked after each update."""
        now = time.perf_counter()
        self._updates += 1
        if self.solves:
            return self._is_solved(now, steps)
        if self._mark is None:
            waits = WARM_SECONDS if self._steps is None else 0.0
            if self._updates >= self._warm and now - self._began >= waits:
                self._mark = now, steps
            return False
        then, before = self._mark
        counted = steps - before
        enough = now - then >= self._seconds if self._steps is None else counted >= self._steps
        if not enough or not counted:
            return False
        self._figures = {"rate": counted / (now - then)}
        return True

    def answer(self, **more: Any) -> None:
        """Print what was found and end."""
        answer(**self._figures, **more)

    def _is_solved(self, now: float, steps: int) -> bool:
        count = sum(count for count, _ in self._recent)
        mean = sum(n * value for n, value in self._recent) / max(count, 1)
        solved = count >= RECENT and mean >= self._score
        took = now - self._began
        self._figures = {"solved": took if solved else None, "steps": steps, "return": mean}
        return solved or took > self._seconds
