"""The process that runs checks and checkers: trusted source, on answers that may be hostile.

A number that an answer blows up, or a text that a pattern never gets through, may hold the
interpreter for hours. So this process does nothing else, and `Judge` (`judge.py`) ends it where it
takes more than its task allows.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.sandbox.checks import (
    DivergedError,
    Replay,
    load_check,
    plan_calls,
    run_check,
    text_of,
    value_of,
)
from fugu.sandbox.grading import Task
from fugu.sandbox.guest import walls
from fugu.sandbox.messages import pack, receive_one
from fugu.sandbox.session import SessionOver

_SLACK = 64 << 20  # bytes that imports within a check may take


def main() -> None:
    """Serve the judge at the other end of the descriptor on the command line."""
    if sys.platform == "linux":
        walls.die_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(EOFError, ConnectionError):
        sys.path[:] = receive_one(connection)[0]
        process = _Process(connection)
        while True:
            connection.sendall(pack(process.answer(*receive_one(connection))))


class _Process:
    """The tasks that are known, and what is asked about them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._tasks: dict[bytes, Task] = {}

    def answer(self, kind: str, key: bytes, *rest: Any) -> tuple[Any, ...]:
        """The answer to one message."""
        try:
            if kind == "task":
                self._tasks[key] = pickle.loads(rest[0])
                return ("known",)
            task = self._tasks[key]
            with _memory(task.limits.memory + _SLACK):
                if kind == "compare":
                    return self._compare(task, *rest)
                names = load_check(task.setup, task.check)
                if kind == "plan":
                    return "plan", plan_calls(names, task.entry)
                if kind == "replay":
                    replay = Replay(*rest)
                    return "checked", run_check(names, task.entry, replay), replay.used
                return "checked", run_check(names, task.entry, self), 0
        except DivergedError:
            return ("diverged",)
        except UsageError as error:
            return "usage", str(error)
        except Exception as error:
            return "failed", f"{type(error).__name__}: {text_of(error)}"

    def call(self, packed: bytes) -> Any:
        """Call the program: the judge passes it on."""
        self._connection.sendall(pack(("call", packed)))
        (outcome,) = receive_one(self._connection)
        if outcome is None:
            raise SessionOver
        return value_of(outcome)

    def _compare(self, task: Task, answers: list[tuple[int, Any]]) -> tuple[Any, ...]:
        """Which answers a task's own checker takes, and what it raised on the first it did not."""
        assert task.checker is not None
        right, failure = [], ""
        for number, value in answers:
            try:
                right.append(bool(task.checker(task.cases[number], value)))
            except Exception as error:
                right.append(False)
                said = f"{type(error).__name__}: {text_of(error)}"
                failure = failure or f"case {number + 1}: the checker raised {said}"
        return "compared", right, failure


@contextlib.contextmanager
def _memory(most: int) -> Iterator[None]:
    """Hold this process to so many bytes more than it has, where the system can."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


if __name__ == "__main__":
    main()
