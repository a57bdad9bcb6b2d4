"""The judge: runs checks and checkers in a process of their own, and enforces its limits.

A check that an answer keeps busy is ended from outside, and the verdict is the program's: nobody
else waits for it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.sandbox.execution import Call, Limits, Outcome, SandboxError
from fugu.sandbox.guest.codec import decode
from fugu.sandbox.guest.serve import cpu_seconds
from fugu.sandbox.messages import Inbox, pack, start
from fugu.sandbox.session import OpenProgram, SessionOver

if TYPE_CHECKING:
    from fugu.sandbox.grading import Task

_LOADING = Limits(cpu_seconds=60.0, wall_seconds=120.0)  # for the imports of a task's source
_TICK = 0.005  # seconds between checks of a limit that is almost used up
Plan = tuple[bytes, ...]


class JudgeError(Exception):
    """A check exceeded its limits, or ended its process."""


class Judge(Closing):
    """Runs the checks and checkers of tasks; the process starts with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[bytes] = set()
        self._plans: dict[bytes, Plan | None] = {}

    def plan(self, task: Task) -> Plan | None:
        """Return the calls that a check makes whatever is answered, packed; None if they vary."""
        if task.key not in self._plans:
            try:
                self._plans[task.key] = self._ask("plan", task)[1]
            except JudgeError:
                self._plans[task.key] = None
        return self._plans[task.key]

    def replay(self, task: Task, plan: Plan, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        """Run a check on answers to all its calls; return why it fails, and how many it used.

        None if it makes other calls than were planned; from then on there is no plan.
        """
        reply = self._ask("replay", task, plan, tuple(outcomes))
        if reply[0] == "diverged":
            self._plans[task.key] = None
            return None
        return reply[1], reply[2]

    def check(self, task: Task, program: OpenProgram) -> str:
        """Run a check that calls a program; return why it fails, empty if it holds."""
        return str(self._ask("check", task, program=program)[1])

    def compare(self, task: Task, answers: list[tuple[int, Any]]) -> tuple[list[bool], str]:
        """Return which answers, by case number, the checker accepts, and what it raised."""
        _, right, failure = self._ask("compare", task, answers)
        return right, failure

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            self._connection.close()
            process.kill()
            process.wait()

    def _ask(
        self, kind: str, task: Task, *rest: Any, program: OpenProgram | None = None
    ) -> tuple[Any, ...]:
        if self._process is None:
            self._start()
        if task.key not in self._known:
            self._exchange(("task", task.key, _pickled(task)), _LOADING, None)
            self._known.add(task.key)
        return self._exchange((kind, task.key, *rest), task.limits, program)

    def _exchange(
        self, message: tuple[Any, ...], limits: Limits, program: OpenProgram | None
    ) -> tuple[Any, ...]:
        """Send a message, pass on the calls that come of it, and return the last reply."""
        assert self._process is not None
        meter = _Meter(self._process.pid, limits)
        done = False
        try:
            self._send(message, meter)
            while (reply := self._receive(meter))[0] == "call":
                assert program is not None
                outcome: Outcome | None = None
                with contextlib.suppress(SessionOver):
                    outcome = program.call(*decode(reply[1]))
                self._send((outcome,), meter)
            done = True
        finally:
            if not done:  # it is in the middle of something: the next task gets another
                self.close()
        if reply[0] == "usage":
            raise UsageError(reply[1])
        if reply[0] == "failed" and message[0] == "task":
            raise SandboxError(f"a task's check or checker does not load: {reply[1]}")
        if reply[0] == "failed":
            raise JudgeError(f"its check fails with {reply[1]}")
        return reply

    def _send(self, message: tuple[Any, ...], meter: _Meter) -> None:
        rest = memoryview(pack(message))
        while rest:
            self._await(select.POLLOUT, meter)
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise JudgeError("its check ended the process that runs it") from None

    def _receive(self, meter: _Meter) -> tuple[Any, ...]:
        while True:
            self._await(select.POLLIN, meter)
            piece = b""
            with contextlib.suppress(OSError):
                piece = self._connection.recv(1 << 20)
            if not piece:
                raise JudgeError("its check ended the process that runs it")
            for reply in self._inbox.feed(piece):
                return reply

    def _await(self, event: int, meter: _Meter) -> None:
        poller = select.poll()
        poller.register(self._connection, event)
        began = time.monotonic()
        while not poller.poll(1000 * meter.pause()):
            meter.check(time.monotonic() - began)
        meter.wall -= time.monotonic() - began

    def _start(self) -> None:
        self._process, self._connection = start("fugu.sandbox.judging", subprocess.DEVNULL)
        self._inbox, self._known = Inbox(), set()
        self._send((sys.path,), _Meter(self._process.pid, _LOADING))


class _Meter:
    """Measures how much of its limits a process has left."""

    def __init__(self, pid: int, limits: Limits) -> None:
        self._pid, self._limits = pid, limits
        self._began = cpu_seconds(pid)
        self._cpu_left = limits.cpu_seconds
        self.wall = limits.wall_seconds

    def pause(self) -> float:
        """Return the seconds until the next check."""
        return max(_TICK, min(self._cpu_left / (os.cpu_count() or 1), self.wall))

    def check(self, waited: float) -> None:
        """Raise JudgeError if it has exceeded a limit."""
        if waited > self.wall:
            raise JudgeError(f"its check takes more than {self._limits.wall_seconds:g} s")
        self._cpu_left = self._limits.cpu_seconds - (cpu_seconds(self._pid) - self._began)
        if self._cpu_left <= 0:
            taken = f"{self._limits.cpu_seconds:g} s of processor time"
            raise JudgeError(f"its check takes more than {taken}")


def as_calls(plan: Plan) -> list[Call]:
    """Return the calls of a plan."""
    return [Call(tuple(args), kwargs) for args, kwargs in map(decode, plan)]


def _pickled(task: Task) -> bytes:
    if task.checker is None:
        return pickle.dumps(task)
    import cloudpickle  # the rest of the package needs the standard library alone

    data: bytes = cloudpickle.dumps(task)
    return data
