"""The trusted end of a stream to a guest. No wait outlasts its deadline, no message its bound."""

from __future__ import annotations

import contextlib
import os
import select
import time

from fugu.sandbox.guest.codec import TooLongError
from fugu.sandbox.guest.frames import HEADER, framed


class Line:
    """Messages to and from a guest, through descriptors that it owns."""

    def __init__(self, inlet: int, outlet: int) -> None:
        self._inlet, self._outlet = inlet, outlet
        self._pending = bytearray()
        for descriptor in {inlet, outlet}:
            os.set_blocking(descriptor, False)

    def send(self, payload: bytes, deadline: float) -> None:
        """Send a message; EOFError once nobody reads, TimeoutError past the deadline."""
        rest = memoryview(framed(payload))
        while rest:
            try:
                rest = rest[os.write(self._outlet, rest) :]
            except BlockingIOError:
                _await(self._outlet, select.POLLOUT, deadline)
            except OSError:
                raise EOFError from None

    def receive(self, most: int, deadline: float) -> bytes:
        """The next message; EOFError once nobody writes, TooLongError beyond `most` bytes."""
        while (payload := self._take(most)) is None:
            try:
                piece = os.read(self._inlet, 1 << 16)
            except BlockingIOError:
                _await(self._inlet, select.POLLIN, deadline)
                continue
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            self._pending += piece
        return payload

    def close(self) -> None:
        """Let go of it."""
        for descriptor in {self._inlet, self._outlet}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._inlet = self._outlet = -1

    def _take(self, most: int) -> bytes | None:
        if len(self._pending) < HEADER.size:
            return None
        size: int = HEADER.unpack_from(self._pending)[0]
        if size > most:
            raise TooLongError(f"a message of {size} bytes, where {most} are allowed")
        end = HEADER.size + size
        if len(self._pending) < end:
            return None
        payload = bytes(self._pending[HEADER.size : end])
        del self._pending[:end]
        return payload


def _await(descriptor: int, event: int, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    poller = select.poll()
    poller.register(descriptor, event)
    poller.poll(1000 * left)
