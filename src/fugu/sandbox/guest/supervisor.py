"""Supervision in Python: the reference of native/sandbox/supervise.c, and what runs without it."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any

from . import frames, program, walls
from .frames import Order

BROKEN = 70  # the status of a child that could not tell what came of its program
_TICK = 0.002  # seconds between looks at a clock that is about to run out


class InChild(BaseException):
    """Unwinds a child to where nothing of the zygote is on its stack, to run its program there."""

    def __init__(self, inlet: int, outlet: int) -> None:
        super().__init__()
        self.line = inlet, outlet


def run_program(inlet: int, outlet: int) -> None:
    """Run what is asked for through the inlet, in a process of its own."""
    program.execute(
        frames.receive(inlet),
        lambda: frames.receive(inlet),
        lambda data: frames.write(outlet, data),
    )


class Supervisor:
    """Forks a child for a program, holds it to its limits and says how it ended."""

    def __init__(self, space: int, scratch: str, lock: bytes, *, walled: bool = True) -> None:
        self._space, self._scratch, self._walled = space, scratch, walled
        self._lock = lock
        self._cores = len(os.sched_getaffinity(0))

    def run(
        self,
        order: Order,
        line: tuple[int, int],
        streams: tuple[int, int],
        control: socket.socket | None,
    ) -> dict[str, Any] | None:
        """See a program to its end; None if whoever ordered it is gone. InChild in the child.

        Nothing of the program passes through this process, whose memory later children inherit.
        """
        pid = walls.fork()
        if pid == 0:
            self._become(order, line, streams)
            raise InChild(*line)
        for descriptor in {*line}:
            os.close(descriptor)
        killed = self._watch(pid, order, control)
        _, status, usage = os.wait4(pid, 0)
        if killed == "gone":
            return None
        return {
            "status": status,
            "killed": killed,
            "cpu": usage.ru_utime + usage.ru_stime,
            "memory": usage.ru_maxrss * 1024,
            "left": bool(self._scratch) and bool(os.listdir(self._scratch)),
        }

    def _watch(self, pid: int, order: Order, control: socket.socket | None) -> str:
        """Wait for the child's end, or bring it about; says why it was killed, if it was."""
        child = _descriptor_of(pid)
        poller = select.poll()
        if child >= 0:
            poller.register(child, select.POLLIN)
        if control is not None:
            poller.register(control, select.POLLIN)
        deadline = time.monotonic() + order.wall
        cpu_left: float = order.cpu
        killed = ""
        while True:
            wall_left = deadline - time.monotonic()
            pause = min(wall_left, cpu_left / self._cores if self._walled else wall_left)
            ready = dict(poller.poll(1000 * (max(pause, _TICK) if child >= 0 else _TICK)))
            if child in ready or (child < 0 and _has_ended(pid)):
                break
            if control is not None and control.fileno() in ready:  # only ever to stop
                killed = "asked" if control.recv(1) else "gone"
            elif time.monotonic() >= deadline:
                killed = "wall"
            elif self._walled:
                cpu_left = order.cpu - cpu_seconds(pid)
                killed = "cpu" if cpu_left <= 0 else ""
            if killed:
                os.kill(pid, signal.SIGKILL)
                break
        if child >= 0:
            os.close(child)
        return killed

    def _become(self, order: Order, line: tuple[int, int], streams: tuple[int, int]) -> None:
        """Shut this process, a child, in."""
        done = False
        try:
            walls.die_with_parent()
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            os.dup2(os.memfd_create("in"), 0)
            if self._scratch:
                os.chdir(self._scratch)
            _close_all_but({0, 1, 2, *line})
            if self._walled:
                walls.limit(order.cpu, self._space + order.memory, order.file_bytes)
                walls.lock(self._lock)
            done = True
        finally:
            if not done:
                os._exit(BROKEN)


def _descriptor_of(pid: int) -> int:
    """A descriptor that is ready once a child has ended; -1 where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken, by its own clock."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it has just ended, or this system has no such clocks
        return 0.0


def _close_all_but(kept: set[int]) -> None:
    last = -1
    for descriptor in sorted(kept):
        if descriptor > last + 1:
            os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 10)
