"""The zygote: a warm interpreter that forks a child for each program, watches it and reports.

It reads orders from a trusted control socket: limits, and the descriptors of a child. It never
reads a program, its inputs or its output, so that its memory, which all children inherit, has none
of them. A child unwinds to `main` before it reads its own program. `once` does the same for a
single program over standard input and output, for jails that pass no descriptors.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import socket
import sys

from . import frames, program, walls
from .codec import decode, encode
from .frames import Order
from .supervisor import BROKEN, InChild, Supervisor, run_program

_ROOM = 1 << 10  # bytes of an order
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
    """Begin as the command line says.

    ROOT serve DESCRIPTOR SCRATCH LIBRARY, where the last two may be empty, or ROOT once walls|bare.
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
            once(walled=rest[0] == "walls")
        return
    except InChild as child:
        line = child.line
    status = BROKEN
    try:
        run_program(*line)
        status = 0
    finally:
        os._exit(status)


def serve(control: socket.socket, scratch: str, library: str) -> None:
    """Run programs as they come, until the other end closes."""
    loop = ctypes.PyDLL(library) if library else None
    warm_up()
    space = walls.address_space()
    granted = walls.raise_walls(_folders(scratch))
    lock = walls.prepare_lock() if granted["seccomp"] else b""
    control.send(json.dumps(granted).encode())
    random.seed(0)  # all programs begin with it: no verdict must hang on chance
    if loop is None:
        _serve(control, Supervisor(space, scratch, lock))
    else:  # as a number, which no destructor of a child closes
        _serve_natively(loop, control.detach(), space, lock)


def _serve(control: socket.socket, supervisor: Supervisor) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _ROOM, 3)
        if not message:
            return
        if not Order.is_one(message):  # a request to stop what had just ended
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
    """Leave all but the programs themselves to the library's loop."""
    size, word = ctypes.c_size_t, ctypes.c_uint64
    loop.fugu_zygote_bytes.restype = size
    zygote = ctypes.create_string_buffer(loop.fugu_zygote_bytes())
    cores = len(os.sched_getaffinity(0))
    loop.fugu_zygote_begin(zygote, control, cores, word(space), lock, size(len(lock)))
    if loop.fugu_zygote_serve(zygote):
        raise InChild(_LINE, _LINE)


def once(*, walled: bool) -> None:
    """Run one program; the first message in is its limits, the report goes to standard error."""
    walls.die_with_parent()
    order = Order.unpack(frames.receive_bytes(0))
    report_to = os.dup(2)
    line = (os.dup(0), os.dup(1))
    nothing = os.memfd_create("nothing")
    for descriptor in (0, 1):  # only the child holds the line: it ends with it
        os.dup2(nothing, descriptor)
    space = walls.address_space() if walled else 0
    granted = walls.raise_walls(_folders("")) if walled else {"seccomp": 0}
    lock = walls.prepare_lock() if granted["seccomp"] else b""
    random.seed(0)
    streams = os.memfd_create("out"), os.memfd_create("err")
    report = Supervisor(space, "", lock, walled=walled).run(order, line, streams, None)
    assert report is not None
    printed = encode(frames.read_streams(streams, order.output))
    os.write(report_to, frames.MARK)
    frames.write(report_to, frames.pack_report(report) + printed)


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
        program.execute(frames.unpack(frames.pack(request)), tuple, decode)
        program.execute({"source": "def"}, tuple, decode)
    sys.modules.pop("program", None)
    gc.collect()
    gc.freeze()


def _folders(scratch: str) -> walls.Folders:
    return walls.Folders(library=os.path.dirname(os.__file__), scratch=scratch)
