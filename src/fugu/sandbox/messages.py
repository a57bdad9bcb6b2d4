"""Messages between a pool and its broker, which trust each other."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_HEADER = struct.Struct("<I")


def pack(message: tuple[Any, ...]) -> bytes:
    """A message as it goes over the wire."""
    body = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(body)) + body


class Inbox:
    """Messages out of the pieces in which they arrive."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[tuple[Any, ...]]:
        """The messages that this piece completes."""
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
    """The first message; waits. EOFError at the end of the stream."""
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
