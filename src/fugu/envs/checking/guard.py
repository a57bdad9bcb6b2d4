"""Guard: an environment that hangs, raises or draws random numbers must not disturb its caller."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from fugu.core.errors import FuguError
from fugu.envs.checking.report import Finding

T = TypeVar("T")
_REPEAT_SECONDS = 1.0  # the alarm repeats, in case the environment swallowed the exception


class CallTimeoutError(BaseException):
    """A call did not return in time.

    Not an `Exception`, so that an environment which catches every `Exception` does not catch it.
    """


class Guard:
    """Calls an environment, limits the time of each call, and turns exceptions into findings.

    As a context manager it restores the global random generators, and a timer of the caller. Time
    limits need SIGALRM, so they work in the main thread of a POSIX system, for anything but C code
    that never returns; elsewhere calls have none.

    Attributes:
        seconds: Duration of the last call.
    """

    def __init__(self, call_seconds: float) -> None:
        self._limit, self._armed, self.seconds = call_seconds, False, 0.0

    def __enter__(self) -> Guard:
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._torch: Any = sys.modules.get("torch")
        self._torch_state = self._torch.get_rng_state() if self._torch else None
        main = threading.current_thread() is threading.main_thread()
        # A handler of None was installed outside of Python and could not be restored.
        if main and hasattr(signal, "SIGALRM") and signal.getsignal(signal.SIGALRM) is not None:
            self._entered = time.monotonic()
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
            self._handler = signal.signal(signal.SIGALRM, self._interrupt)
            self._armed = True
        return self

    def __exit__(self, *_: object) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        if self._torch:
            self._torch.set_rng_state(self._torch_state)
        if self._armed:
            signal.signal(signal.SIGALRM, self._handler)
            remaining, interval = self._timer
            if remaining:
                elapsed = time.monotonic() - self._entered
                signal.setitimer(signal.ITIMER_REAL, max(remaining - elapsed, 0.001), interval)

    def call(self, check: str, function: Callable[..., T], *args: Any, place: str = "") -> T:
        """Call `function(*args)`; whatever it raises becomes a failure of `check` at `place`."""
        self._set_alarm(self._limit)
        began = time.perf_counter()
        try:
            return function(*args)
        except Finding:
            raise
        except (Exception, SystemExit, CallTimeoutError) as error:
            text = str(error) if isinstance(error, FuguError) else _last_lines(error)
            raise Finding(check, "fail", text, _advice(error, check), place=place) from error
        finally:
            self.seconds = time.perf_counter() - began
            self._set_alarm(0)

    def _set_alarm(self, seconds: float) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS if seconds else 0)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        raise CallTimeoutError(f"did not return within {self._limit:g} seconds")


def _last_lines(error: BaseException) -> str:
    """Return where an error was raised, below the guard, and its message, in at most 8 lines."""
    below = error.__traceback__ and error.__traceback__.tb_next
    text = traceback.format_exception(type(error), error, below, limit=-2, chain=False)
    lines = "".join(text).removeprefix("Traceback (most recent call last):\n").splitlines()
    lines = [line for line in lines if set(line.strip()) - set("^~")]
    return "\n".join(lines if len(lines) <= 8 else [*lines[:4], "  ...", *lines[-3:]])


def _advice(error: BaseException, check: str) -> str:
    if isinstance(error, FuguError):
        return "Do what the error says."
    if check == "reset" and isinstance(error, TypeError) and "argument" in str(error):
        return "Declare it as reset(self, *, seed=None, options=None): fugu passes both."
    return f"Fix the environment, which raised this error in {check}."
