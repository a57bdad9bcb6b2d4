"""The zygote: a warm interpreter that forks a child for each program, watches it and reports.

It reads orders from a trusted control socket and never touches a program itself. A child gets the
descriptor it talks through, its limits and nothing else. `once` does the same for a single program
over standard input and output, for jails that pass no descriptors.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import random
import socket
import sys

from . import frames, program, walls
from .codec import decode
from .frames import Order
from .supervisor import BROKEN, Supervisor, run_program

_ROOM = 1 << 18  # bytes of an order and the program in it
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
    if mode == "serve":
        serve(socket.socket(fileno=int(rest[0])), scratch=rest[1], library=rest[2])
    else:
        once(walled=rest[0] == "walls")


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
    else:
        _serve_natively(loop, control.fileno(), space, lock)


def _serve(control: socket.socket, supervisor: Supervisor) -> None:
    buffer = bytearray(_ROOM)
    while True:
        message, descriptors = _receive(control, buffer)
        if not message:
            return
        if not descriptors:  # a request to stop what had just ended
            continue
        (line,) = descriptors
        order, request = Order.unpack(message)
        report = supervisor.run(order, (-1 if order.batch else line, line), control, request)
        if report is None:
            return
        control.send(frames.pack_report(report))


def _serve_natively(loop: ctypes.PyDLL, control: int, space: int, lock: bytes) -> None:
    """Leave all but the programs themselves to the library's loop."""
    size, word = ctypes.c_size_t, ctypes.c_uint64
    loop.fugu_zygote_bytes.restype = size
    loop.fugu_zygote_serve.restype = ctypes.c_ssize_t
    zygote = ctypes.create_string_buffer(loop.fugu_zygote_bytes(size(_ROOM)))
    cores = len(os.sched_getaffinity(0))
    loop.fugu_zygote_begin(zygote, control, cores, word(space), lock, size(len(lock)), size(_ROOM))
    buffer = memoryview(zygote).cast("B")[-_ROOM:]
    taken = loop.fugu_zygote_serve(zygote)
    if taken < 0:  # nobody orders any more; else this is a child
        return
    status = BROKEN
    try:
        run_program(buffer[:taken] if taken else frames.receive_bytes(_LINE), _LINE, _LINE)
        status = 0
    finally:
        os._exit(status)


def once(*, walled: bool) -> None:
    """Run one program; the first message in is its limits, the report goes to standard error."""
    walls.die_with_parent()
    order, _ = Order.unpack(frames.receive_bytes(0))
    report_to = os.dup(2)
    line = (os.dup(0), os.dup(1))
    nothing = os.memfd_create("nothing")
    for descriptor in (0, 1):  # only the child holds the line: it ends with it
        os.dup2(nothing, descriptor)
    space = walls.address_space() if walled else 0
    granted = walls.raise_walls(_folders("")) if walled else {"seccomp": 0}
    lock = walls.prepare_lock() if granted["seccomp"] else b""
    random.seed(0)
    report = Supervisor(space, "", lock, walled=walled).run(order, line, None)
    assert report is not None
    os.write(report_to, frames.MARK)
    frames.write(report_to, frames.pack_report(report))


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


def _receive(control: socket.socket, buffer: bytearray) -> tuple[bytes, array.array[int]]:
    size, ancillary, _, _ = control.recvmsg_into([buffer], socket.CMSG_SPACE(4))
    message = bytes(memoryview(buffer)[:size])
    descriptors = array.array("i")
    for _level, _kind, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, descriptors


def _folders(scratch: str) -> walls.Folders:
    return walls.Folders(library=os.path.dirname(os.__file__), scratch=scratch)
