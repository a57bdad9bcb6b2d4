"""Channels: small messages beside the slab. Nothing that is sent on every step passes here."""

from __future__ import annotations

import os
import pickle
import select
import struct
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

_HEADER = struct.Struct("!Q")


class Channel(Protocol):
    """Both ends send and receive; receiving never waits."""

    def send(self, message: tuple[Any, ...], waiting: Callable[[], None]) -> None:
        """Send; `waiting` is called now and then while the other end does not read."""
        raise NotImplementedError("send(message, waiting)")

    def receive(self) -> list[tuple[Any, ...]]:
        """All messages that have arrived; raises EOFError once the other end is gone."""
        raise NotImplementedError("receive()")

    def close(self) -> None:
        """Let go of it."""
        raise NotImplementedError("close()")


class PipeChannel:
    """Between processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._descriptor = connection.fileno()
        os.set_blocking(self._descriptor, False)
        self._pending = bytearray()

    def send(self, message: tuple[Any, ...], waiting: Callable[[], None]) -> None:
        """Send; `waiting` is called now and then while the other end does not read."""
        if self._connection.closed:  # its descriptor may be another file's by now
            raise BrokenPipeError("expected an open channel; got one that was closed")
        body = dump(message)
        rest = memoryview(_HEADER.pack(len(body)) + body)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                waiting()
                if self._connection.closed:
                    raise BrokenPipeError("the other end was replaced meanwhile") from None
                select.select([], [self._descriptor], [], 0.05)

    def receive(self) -> list[tuple[Any, ...]]:
        """All messages that have arrived; raises EOFError once the other end is gone."""
        while True:
            try:
                piece = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                break
            except ConnectionError:
                piece = b""
            if not piece:
                if self._pending:
                    break
                raise EOFError
            self._pending += piece
        return self._messages()

    def _messages(self) -> list[tuple[Any, ...]]:
        found, start = [], 0
        while start + _HEADER.size <= len(self._pending):
            (length,) = _HEADER.unpack_from(self._pending, start)
            begin = start + _HEADER.size
            if begin + length > len(self._pending):
                break
            found.append(pickle.loads(memoryview(self._pending)[begin : begin + length]))
            start = begin + length
        del self._pending[:start]
        return found

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()


class LocalChannel:
    """Between threads, or within one."""

    def __init__(self, inbox: deque[tuple[Any, ...]], outbox: deque[tuple[Any, ...]]) -> None:
        self._inbox, self._outbox = inbox, outbox

    @classmethod
    def pair(cls) -> tuple[LocalChannel, LocalChannel]:
        """The two ends of one."""
        a: deque[tuple[Any, ...]] = deque()
        b: deque[tuple[Any, ...]] = deque()
        return cls(a, b), cls(b, a)

    def send(self, message: tuple[Any, ...], waiting: Callable[[], None]) -> None:
        """Send."""
        self._outbox.append(message)

    def receive(self) -> list[tuple[Any, ...]]:
        """All messages that have arrived."""
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def close(self) -> None:
        """Nothing to let go of."""


def dump(message: Any) -> bytes:
    """Pickled; what cannot be is sent as its text rather than lost."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickle.dumps(_picklable(message), pickle.HIGHEST_PROTOCOL)


def _picklable(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_picklable(item) for item in value)
    if isinstance(value, dict):
        return {key: _picklable(item) for key, item in value.items()}
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value
