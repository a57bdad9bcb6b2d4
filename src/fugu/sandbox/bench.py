"""Executions a second and a core: how quickly backends run programs that take no time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median

from fugu.core.errors import FuguError
from fugu.sandbox.backends import Backend, make_executor
from fugu.sandbox.grading import Task, grade

SMALL = (
    "def double(n):\n    return 2 * n\n",
    Task(
        "small",
        "double",
        check=(
            "def check(candidate):\n    assert candidate(21) == 42\n    assert candidate(0) == 0\n"
        ),
    ),
)
WARM_UP = 0.2  # seconds
Job = tuple[str, Task]


class BenchmarkError(FuguError, RuntimeError):
    """A right program that was not judged so."""


class Grader:
    """Grades right programs one after the other with one executor.

    Args:
        backend: What runs them.
        jobs: Programs and their tasks, which they pass; one small function if not given.
    """

    def __init__(self, backend: Backend, jobs: Sequence[Job] = (SMALL,)) -> None:
        self._executor = make_executor(backend)
        self._jobs = cycle(jobs)
        try:
            self(WARM_UP)
        except BaseException:
            self.close()
            raise

    def __call__(self, seconds: float) -> float:
        """Programs a second, over one window."""
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            source, task = next(self._jobs)
            found = grade(source, task, self._executor)
            if found.verdict != "passed":
                raise BenchmarkError(
                    f"{task.name} under {self._executor.name}: given {found.verdict} "
                    f"({found.message}); allowed: passed."
                )
            done += 1
        return done / (time.perf_counter() - began)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()


@dataclass(frozen=True)
class Rate:
    """What was measured of a backend."""

    backend: Backend
    programs_per_second: float | None
    """Of one core; None if it does not run here."""
    why: str = ""
    """Why it does not."""


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this process and all that it starts to one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(
    backends: Sequence[Backend],
    seconds: float = 3.0,
    rounds: int = 3,
    *,
    jobs: Sequence[Job] = (SMALL,),
    tell: Callable[[str, float], None] = lambda backend, share: None,
) -> list[Rate]:
    """Grade programs for so long with each backend, on one core; medians of windows.

    Backends take turns, one window each, round after round, so that whatever else the machine does
    meets all of them.

    Args:
        backends: Which.
        seconds: Of each.
        rounds: Windows of each.
        jobs: Programs that pass, and their tasks.
        tell: Called with the backend that comes next and the share that is done.
    """
    why: dict[Backend, str] = {}
    graders: dict[Backend, Grader] = {}
    windows: dict[Backend, list[float]] = {backend: [] for backend in backends}
    with one_core(), ExitStack() as stack:
        for backend in backends:
            tell(f"starting {backend}", 0.0)
            try:
                graders[backend] = Grader(backend, jobs)
            except FuguError as error:
                why[backend] = str(error)
            else:
                stack.callback(graders[backend].close)
        turns = [(backend, grader) for _ in range(rounds) for backend, grader in graders.items()]
        for number, (backend, grader) in enumerate(turns):
            tell(backend, number / len(turns))
            windows[backend].append(grader(seconds / rounds))
        tell("done", 1.0)
    return [
        Rate(backend, median(windows[backend]) if windows[backend] else None, why.get(backend, ""))
        for backend in backends
    ]
