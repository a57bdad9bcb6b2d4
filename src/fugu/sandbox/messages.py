"""Messages between trusted processes: a pool and its broker, a judge and its process."""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<I")


def start(module: str, stderr: int | None = None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that calls `main` of a module, and return it and a socket to it.

    The module gets its end of the socket as a descriptor on the command line. Ours never blocks.
    """
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).parents[2])
    begin = f"import sys; sys.path.insert(0, {root!r}); import {module} as module; module.main()"
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", begin, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    ours.setblocking(False)
    return process, ours


def pack(message: tuple[Any, ...]) -> bytes:
    """Return a message as it is sent."""
    body = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(body)) + body


class Inbox:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[tuple[Any, ...]]:
        """Return the messages that this piece completes."""
        self._pending += piece
        found, start = [], 0
        while start + _HEADER.size <= len(self._pending):
            (size,) = _HEADER.unpack_from(self._pending, start)
            end = start + _HEADER.size + size
            if end > len(self._pending):
                break
            found.append(pickle.loads(self._pending[start + _HEADER.size : end]))
            start = end
        del self._pending[:start]
        return found


def receive_one(connection: socket.socket) -> tuple[Any, ...]:
    """Wait for the first message; EOFError at the end of the stream."""
    header = _exactly(connection, _HEADER.size)
    body = _exactly(connection, _HEADER.unpack(header)[0])
    message: tuple[Any, ...] = pickle.loads(body)
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = connection.recv(count - len(pieces))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)
