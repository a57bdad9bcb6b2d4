"""Supervision in Python: the reference of native/sandbox/supervise.c, and what runs without it."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

from . import frames, program, walls
from .frames import Order

_TOLD = 1 << 16  # bytes of captured output in a report
BROKEN = 70  # the status of a child that could not tell what came of its program
_TICK = 0.002  # seconds between looks at a clock that is about to run out


def run_program(request: bytes | memoryview, inlet: int, outlet: int) -> None:
    """Run what is asked for, in a process of its own; calls of a session come through the inlet."""
    program.execute(
        frames.unpack(request),
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
        control: socket.socket | None,
        request: bytes = b"",
    ) -> dict[str, Any] | None:
        """Run a program to its end; None if whoever ordered it is gone.

        The request is read from the line unless it is given.
        """
        captured = os.memfd_create("out"), os.memfd_create("err")
        pid = walls.fork()
        if pid == 0:
            self._become(order, line, captured, request)
        for descriptor in set(line) - {-1}:
            os.close(descriptor)
        killed = self._watch(pid, order, control)
        _, status, usage = os.wait4(pid, 0)
        sizes = [os.fstat(descriptor).st_size for descriptor in captured]
        most = min(_TOLD, order.output)
        told = [os.pread(descriptor, most, 0) for descriptor in captured]
        for descriptor in captured:
            os.close(descriptor)
        if killed == "gone":
            return None
        return {
            "status": status,
            "killed": killed,
            "cpu": usage.ru_utime + usage.ru_stime,
            "memory": usage.ru_maxrss * 1024,
            "out": told[0],
            "err": told[1],
            "printed": max(sizes),
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
                cpu_left = order.cpu - _cpu_seconds(pid)
                killed = "cpu" if cpu_left <= 0 else ""
            if killed:
                os.kill(pid, signal.SIGKILL)
                break
        if child >= 0:
            os.close(child)
        return killed

    def _become(
        self,
        order: Order,
        line: tuple[int, int],
        captured: tuple[int, int],
        given: bytes,
    ) -> NoReturn:
        """The child: shut itself in, then run the program."""
        status = BROKEN
        try:
            walls.die_with_parent()
            inlet, outlet = line
            os.dup2(captured[0], 1)
            os.dup2(captured[1], 2)
            os.dup2(os.memfd_create("in"), 0)
            if self._scratch:
                os.chdir(self._scratch)
            _close_all_but({0, 1, 2, inlet, outlet} - {-1})
            if self._walled:
                walls.limit(order.cpu, self._space + order.memory, order.file_bytes)
                walls.lock(self._lock)
            request = given or frames.receive_bytes(inlet)
            run_program(request, inlet, outlet)
            status = 0
        finally:
            os._exit(status)


def _descriptor_of(pid: int) -> int:
    """A descriptor that is ready once a child has ended; -1 where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _cpu_seconds(pid: int) -> float:
    """Processor time that a child has taken, by its own clock."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it has just ended
        return 0.0


def _close_all_but(kept: set[int]) -> None:
    last = -1
    for descriptor in sorted(kept):
        if descriptor > last + 1:
            os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 10)
