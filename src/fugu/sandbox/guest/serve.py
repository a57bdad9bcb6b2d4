"""The zygote: a warm interpreter that forks a child for each program, watches it and reports.

It reads orders from a trusted control socket and never touches a program itself. A child gets the
descriptor it talks through, its limits and nothing else. `once` does the same for a single program
over standard input and output, for jails that pass no descriptors.
"""

from __future__ import annotations

import array
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
from typing import Any, NoReturn

from . import frames, program, walls
from .codec import decode, encode

_TOLD = 1 << 16  # bytes of captured output in a report
_ORDER = 1 << 18  # bytes of an order and the program in it
_BROKEN = 70  # the status of a child that could not tell what came of its program
_TICK = 0.002  # seconds between looks at a clock that is about to run out
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
    """Begin as the command line says: ROOT serve DESCRIPTOR SCRATCH, or ROOT once walls|bare."""
    _, root, mode, *rest = sys.argv
    sys.path.remove(root)  # for importing this program, which is done
    sys.argv[:] = [""]
    if rest[0] != "bare":
        os.environ.clear()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    if mode == "serve":
        serve(socket.socket(fileno=int(rest[0])), scratch=rest[1])
    else:
        once(walled=rest[0] == "walls")


def serve(control: socket.socket, scratch: str) -> None:
    """Run programs as they come, until the other end closes."""
    warm_up()
    space = walls.address_space()
    granted = walls.raise_walls(_folders(scratch))
    zygote = Supervisor(space, scratch)
    control.send(frames.pack_report({"granted": granted, "out": b"", "err": b""}))
    buffer = bytearray(_ORDER)
    while True:
        message, descriptors = _receive(control, buffer)
        if not message:
            return
        if not descriptors:  # a request to stop what had just ended
            continue
        (line,) = descriptors
        words, _, request = message.partition(b"\n")
        order = json.loads(words)
        inlet = -1 if order["batch"] else line
        report = zygote.run(order, (inlet, line), control, request)
        if report is None:
            return
        control.send(frames.pack_report(report))


def once(*, walled: bool) -> None:
    """Run one program; the first message in is its limits, the report goes to standard error."""
    walls.die_with_parent()
    order = json.loads(frames.receive_bytes(0))
    report_to = os.dup(2)
    line = (os.dup(0), os.dup(1))
    nothing = os.memfd_create("nothing")
    for descriptor in (0, 1):  # only the child holds the line: it ends with it
        os.dup2(nothing, descriptor)
    space = walls.address_space() if walled else 0
    granted = walls.raise_walls(_folders("")) if walled else {}
    report = Supervisor(space, "", walled=walled).run(order, line, None)
    assert report is not None
    os.write(report_to, frames.MARK)
    frames.write(report_to, frames.pack_report({**report, "granted": granted}))


def warm_up() -> None:
    """Load libraries and run what children will run, so that their pages are shared and ready."""
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
        program.execute(decode(encode(request)), tuple, decode)
        program.execute({"source": "def"}, tuple, decode)
    sys.modules.pop("program", None)
    gc.collect()
    gc.freeze()


class Supervisor:
    """Forks a child for a program, holds it to its limits and says how it ended."""

    def __init__(self, space: int, scratch: str, *, walled: bool = True) -> None:
        self._space, self._scratch, self._walled = space, scratch, walled
        self._lock = walls.prepare_lock() if walled else b""
        self._cores = len(os.sched_getaffinity(0))
        random.seed(0)  # all programs begin with it: no verdict must hang on chance

    def run(
        self,
        order: dict[str, Any],
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
        most = min(_TOLD, order["output"])
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

    def _watch(self, pid: int, order: dict[str, Any], control: socket.socket | None) -> str:
        """Wait for the child's end, or bring it about; says why it was killed, if it was."""
        child = _descriptor_of(pid)
        poller = select.poll()
        if child >= 0:
            poller.register(child, select.POLLIN)
        if control is not None:
            poller.register(control, select.POLLIN)
        deadline = time.monotonic() + order["wall"]
        cpu_left: float = order["cpu"]
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
                cpu_left = order["cpu"] - _cpu_seconds(pid)
                killed = "cpu" if cpu_left <= 0 else ""
            if killed:
                os.kill(pid, signal.SIGKILL)
                break
        if child >= 0:
            os.close(child)
        return killed

    def _become(
        self,
        order: dict[str, Any],
        line: tuple[int, int],
        captured: tuple[int, int],
        given: bytes,
    ) -> NoReturn:
        """The child: shut itself in, then run the program."""
        status = _BROKEN
        try:
            walls.die_with_parent()
            inlet, outlet = line
            request = decode(given) if given else frames.receive(inlet)
            os.dup2(captured[0], 1)
            os.dup2(captured[1], 2)
            os.dup2(os.memfd_create("in"), 0)
            if self._scratch:
                os.chdir(self._scratch)
            _close_all_but({0, 1, 2, inlet, outlet} - {-1})
            if self._walled:
                longest = max((len(text) for text in request["stdin"]), default=0)
                file_bytes = max(order["output"], 4 * longest, order["scratch"])
                if given:  # answers go into a file of memory
                    envelopes = 64 * (2 + len(request["calls"]) + len(request["stdin"]))
                    file_bytes = max(file_bytes, order["result"] + envelopes)
                walls.limit(order["cpu"], self._space + order["memory"], file_bytes)
                walls.lock(self._lock)
            program.execute(
                request, lambda: frames.receive(inlet), lambda data: frames.write(outlet, data)
            )
            status = 0
        finally:
            os._exit(status)


def _receive(control: socket.socket, buffer: bytearray) -> tuple[bytes, array.array[int]]:
    size, ancillary, _, _ = control.recvmsg_into([buffer], socket.CMSG_SPACE(4))
    message = bytes(memoryview(buffer)[:size])
    descriptors = array.array("i")
    for _level, _kind, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, descriptors


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


def _folders(scratch: str) -> walls.Folders:
    return walls.Folders(library=os.path.dirname(os.__file__), scratch=scratch)
