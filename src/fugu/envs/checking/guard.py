"""Guards: nothing that an environment does may hang, end or disturb the program that checks it."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

_AGAIN_SECONDS = 1.0


class Stalled(BaseException):
    """A call of the environment did not come back in time.

    Not an `Exception`, so that an environment which catches everything does not catch it.
    """


FAULTS = (Exception, SystemExit, Stalled)  # whatever an environment may throw


class Watchdog:
    """Breaks a call of the environment that hangs, with SIGALRM.

    It works where Python can interrupt: in the main thread of a POSIX system, in anything but C
    code that never returns. Elsewhere it does nothing. While it is on, no signal is delivered
    unless a call takes long, and afterwards a timer that ran before goes on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = float("inf")  # when the call under way began
        self._armed = False

    def begin(self) -> None:
        """A call begins."""
        self._since = time.monotonic()

    def end(self) -> None:
        """The call is over."""
        self._since = float("inf")

    def __enter__(self) -> Watchdog:
        main = threading.current_thread() is threading.main_thread()
        # A handler of None was set outside of Python and could not be put back.
        if main and hasattr(signal, "SIGALRM") and signal.getsignal(signal.SIGALRM) is not None:
            self._entered = time.monotonic()
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
            self._handler = signal.signal(signal.SIGALRM, self._bark)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
            self._armed = True
        return self

    def __exit__(self, *_: object) -> None:
        if not self._armed:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._handler)
        remaining, interval = self._timer
        if remaining:
            elapsed = time.monotonic() - self._entered
            signal.setitimer(signal.ITIMER_REAL, max(remaining - elapsed, 0.001), interval)

    def _bark(self, _signal: int, _frame: FrameType | None) -> None:
        elapsed = time.monotonic() - self._since  # minus infinity between calls
        if elapsed < self._seconds:
            signal.setitimer(signal.ITIMER_REAL, self._seconds - max(elapsed, 0.0))
            return
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)  # should this one be swallowed
        raise Stalled(f"did not return within {self._seconds:g} seconds")


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Put the global random generators back, whatever the environment draws from them."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  it is the global one
    torch: Any = sys.modules.get("torch")  # nothing to put back if nobody imported it
    torch_state = torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(torch_state)


def last_lines(error: BaseException) -> str:
    """Where an error came from and what it says, in a few lines."""
    lines = "".join(traceback.format_exception(error, limit=-2, chain=False)).strip().splitlines()
    kept = [line for line in lines[1:] if set(line.strip()) - set("^~")] or lines
    return "\n".join(kept if len(kept) <= 8 else [*kept[:4], "  ...", *kept[-3:]])
