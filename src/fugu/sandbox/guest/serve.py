"""The zygote: a warm interpreter that forks a child for each program, watches it and reports.

It reads orders from a trusted control socket: limits, and the descriptors of a child. It never
reads a program, its inputs or its output, so its memory, which all children inherit, holds none of
them. A child unwinds to `main` before it reads its own program. `once` does the same for a single
program over standard input and output, for jails that pass no descriptors.

`Supervisor` is the reference of native/sandbox/supervise.c, and supervises where that is missing.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
from typing import Any

from . import frames, isolation, program
from .codec import decode, encode
from .frames import Order

_ROOM = 1 << 10  # bytes of an order
_BROKEN = 70  # the status of a child that could not run its program
_TICK = 0.002  # seconds between checks of a limit that is almost used up
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_LINE = 3  # the descriptor that a child of the library talks through
# What programs use most; the rest is there to import, and each of these makes every fork dearer.
_LIBRARIES = (
    "bisect collections copy functools heapq itertools json math operator random re string struct "
    "time types typing"
)
_WARM = """
import math, re
class Thing:
    def __init__(self, value): self.value = value
def answer(n, word="a"):
    try:
        [][n]
    except IndexError as error:
        text = str(error)
    table = {i: (i, float(i), str(i)) for i in range(n)}
    return [sorted(table), {word, text}, math.sqrt(n), re.sub("a", "b", word), Thing(n).value, b"x"]
"""


def main() -> None:
    """Start as the command line says.

    ROOT serve DESCRIPTOR SCRATCH LIBRARY (the last two may be empty), or ROOT once isolated|bare.
    """
    _, root, mode, *rest = sys.argv
    sys.path.remove(root)  # for importing this program, which is done
    sys.argv[:] = [""]
    if rest[0] != "bare":
        os.environ.clear()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    try:
        if mode == "serve":
            serve(socket.socket(fileno=int(rest[0])), scratch=rest[1], library=rest[2])
        else:
            once(isolated=rest[0] == "isolated")
        return
    except InChild as child:
        line = child.line
    status = _BROKEN
    try:
        run_program(*line)
        status = 0
    finally:
        os._exit(status)


def serve(control: socket.socket, scratch: str, library: str) -> None:
    """Run programs until the control socket is closed."""
    loop = ctypes.PyDLL(library) if library else None
    warm_up()
    space = isolation.address_space()
    granted = isolation.isolate(_folders(scratch))
    lock = isolation.prepare_lock() if granted["seccomp"] else b""
    control.send(json.dumps(granted).encode())
    random.seed(0)  # the same for all programs: no verdict may depend on it
    if loop is None:
        _serve(control, Supervisor(space, scratch, lock))
    else:  # a number, which no destructor of a child closes
        _serve_natively(loop, control.detach(), space, lock)


def _serve(control: socket.socket, supervisor: Supervisor) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _ROOM, 3)
        if not message:
            return
        if len(message) != frames.ORDER.size:  # a stop request for a program that has just ended
            continue
        line, out, err = descriptors
        report = supervisor.run(Order.unpack(message), (line, line), (out, err), control)
        os.close(out)
        os.close(err)
        if report is None:
            return
        control.send(frames.pack_report(report))
        del report


def _serve_natively(loop: ctypes.PyDLL, control: int, space: int, lock: bytes) -> None:
    """Leave everything except the programs themselves to the loop of the library."""
    size, word = ctypes.c_size_t, ctypes.c_uint64
    loop.fugu_zygote_bytes.restype = size
    zygote = ctypes.create_string_buffer(loop.fugu_zygote_bytes())
    cores = len(os.sched_getaffinity(0))
    loop.fugu_zygote_begin(zygote, control, cores, word(space), lock, size(len(lock)))
    if loop.fugu_zygote_serve(zygote):
        raise InChild(_LINE, _LINE)


def once(*, isolated: bool) -> None:
    """Run one program; the first message in is its limits, the report goes to standard error."""
    isolation.die_with_parent()
    order = Order.unpack(frames.receive_bytes(0))
    report_to = os.dup(2)
    line = (os.dup(0), os.dup(1))
    nothing = os.memfd_create("nothing")
    for descriptor in (0, 1):  # only the child holds the line, so that it closes with it
        os.dup2(nothing, descriptor)
    space = isolation.address_space() if isolated else 0
    granted = isolation.isolate(_folders("")) if isolated else {"seccomp": 0}
    lock = isolation.prepare_lock() if granted["seccomp"] else b""
    random.seed(0)
    streams = os.memfd_create("out"), os.memfd_create("err")
    report = Supervisor(space, "", lock, isolated=isolated).run(order, line, streams, None)
    assert report is not None
    printed = encode(frames.read_streams(streams, order.output))
    os.write(report_to, frames.MARK)
    frames.write(report_to, frames.pack_report(report) + printed)


def warm_up() -> None:
    """Load libraries and run what children will run, so that their memory is shared and ready."""
    for name in _LIBRARIES.split():
        importlib.import_module(name)
    request = {
        "source": _WARM,
        "entry": "answer",
        "calls": [((5,), {}), ((3,), {"word": "aa"}), (("no",), {})],
        "session": False,
        "result": 1 << 20,
    }
    for _ in range(20):
        program.execute(frames.unpack(frames.pack(request)), tuple, decode)
        program.execute({"source": "def"}, tuple, decode)
    sys.modules.pop("program", None)
    gc.collect()
    gc.freeze()


def _folders(scratch: str) -> isolation.Folders:
    return isolation.Folders(library=os.path.dirname(os.__file__), scratch=scratch)


# ---------------------------------------------------------------------- supervision


class InChild(BaseException):
    """Unwinds a child until nothing of the zygote is on its stack; it runs its program there."""

    def __init__(self, inlet: int, outlet: int) -> None:
        super().__init__()
        self.line = inlet, outlet


def run_program(inlet: int, outlet: int) -> None:
    """Run the request that comes through the inlet."""
    program.execute(
        frames.receive(inlet),
        lambda: frames.receive(inlet),
        lambda data: frames.write(outlet, data),
    )


class Supervisor:
    """Forks a child for a program, enforces its limits and reports how it ended."""

    def __init__(self, space: int, scratch: str, lock: bytes, *, isolated: bool = True) -> None:
        self._space, self._scratch, self._isolated = space, scratch, isolated
        self._lock = lock
        self._cores = len(os.sched_getaffinity(0))

    def run(
        self,
        order: Order,
        line: tuple[int, int],
        streams: tuple[int, int],
        control: socket.socket | None,
    ) -> dict[str, Any] | None:
        """Run a program and return its report; None if the control socket is closed.

        Nothing of the program passes through this process, whose memory later children inherit.

        Raises:
            InChild: In the child.
        """
        pid = isolation.fork()
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
        """Wait until the child ends or exceeds a limit; return why it was killed, if it was."""
        try:
            child = os.pidfd_open(pid)  # ready once the child has ended
        except OSError:  # the kernel has none
            child = -1
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
            pause = min(wall_left, cpu_left / self._cores if self._isolated else wall_left)
            ready = dict(poller.poll(1000 * (max(pause, _TICK) if child >= 0 else _TICK)))
            if child in ready or (child < 0 and os.waitid(os.P_PID, pid, _HAS_ENDED)):
                break
            if control is not None and control.fileno() in ready:  # a stop request
                killed = "asked" if control.recv(1) else "gone"
            elif time.monotonic() >= deadline:
                killed = "wall"
            elif self._isolated:
                cpu_left = order.cpu - cpu_seconds(pid)
                killed = "cpu" if cpu_left <= 0 else ""
            if killed:
                os.kill(pid, signal.SIGKILL)
                break
        if child >= 0:
            os.close(child)
        return killed

    def _become(self, order: Order, line: tuple[int, int], streams: tuple[int, int]) -> None:
        """Isolate this process, a child."""
        done = False
        try:
            isolation.die_with_parent()
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            os.dup2(os.memfd_create("in"), 0)
            if self._scratch:
                os.chdir(self._scratch)
            _close_all_but({0, 1, 2, *line})
            if self._isolated:
                isolation.limit(order.cpu, self._space + order.memory, order.file_bytes)
                isolation.lock(self._lock)
            done = True
        finally:
            if not done:
                os._exit(_BROKEN)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, by its own clock."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it has just ended, or the system has no such clocks
        return 0.0


def _close_all_but(kept: set[int]) -> None:
    last = -1
    for descriptor in sorted(kept):
        if descriptor > last + 1:
            os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 10)
