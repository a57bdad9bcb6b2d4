"""Messages between the trusted side and a guest.

Over a stream a message is four bytes of length and a payload. Values that the guest gets are packed
by `pack`; those that it gives, whoever wrote them, are only ever read by `codec.decode`.
"""

from __future__ import annotations

import marshal
import os
import struct
from types import NoneType
from typing import Any, NamedTuple

from .codec import MAX_DEPTH, decode, encode

HEADER = struct.Struct("<I")
MARK = b"\0fugu report\0"  # before a report on standard error, where others may write too
# As native/sandbox/supervise.c has them.
_ORDER = struct.Struct("<ddQQQQ")
_REPORT = struct.Struct("<iidQQIIQ")
_KILLED = ("", "wall", "cpu", "asked")
_MARSHAL = 1
_NO_REFERENCES = 2  # the version of marshal that writes a list twice which occurs twice
_PLAIN = {NoneType, bool, int, float, complex, str, bytes}
_HOLDERS = {list, tuple, set, frozenset, dict}


class Order(NamedTuple):
    """What a child may take: seconds and bytes."""

    cpu: float
    wall: float
    memory: int
    file_bytes: int
    output: int
    batch: bool
    """Whether the request comes with the order."""

    def pack(self) -> bytes:
        """The order as it is sent."""
        return _ORDER.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Order, bytes]:
        """The order that a message begins with, and the rest of it."""
        cpu, wall, memory, file_bytes, output, batch = _ORDER.unpack_from(data)
        order = cls(cpu, wall, memory, file_bytes, output, bool(batch))
        return order, data[_ORDER.size :]


def pack(value: Any) -> bytes:
    """A value for a guest; CodecError if it cannot be written.

    Marshal, where it keeps all types: a child that reads it copies few pages.
    """
    if _is_plain(value, MAX_DEPTH):
        return bytes([_MARSHAL]) + marshal.dumps(value, _NO_REFERENCES)
    return b"\0" + encode(value)


def unpack(data: bytes | memoryview) -> Any:
    """The value of `pack`, in a guest."""
    return marshal.loads(data[1:]) if data[0] == _MARSHAL else decode(bytes(data[1:]))


def _is_plain(value: Any, depth: int) -> bool:
    """Whether marshal keeps all types of a value, which is at most so deep."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth == 0 or kind not in _HOLDERS:
        return False
    items = [*value.keys(), *value.values()] if kind is dict else value
    return set(map(type, items)) <= _PLAIN or all(_is_plain(item, depth - 1) for item in items)


def framed(payload: bytes) -> bytes:
    """A payload with its length before it."""
    return HEADER.pack(len(payload)) + payload


def write(descriptor: int, payload: bytes) -> None:
    """Write a payload as one message; waits."""
    data = framed(payload)
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def receive(descriptor: int) -> Any:
    """The next value for a guest; waits. EOFError at the end of the stream."""
    return unpack(receive_bytes(descriptor))


def receive_bytes(descriptor: int) -> bytes:
    """The next message as it is; waits. EOFError at the end of the stream."""
    size: int = HEADER.unpack(_exactly(descriptor, HEADER.size))[0]
    return _exactly(descriptor, size)


def pack_report(report: dict[str, Any]) -> bytes:
    """A report and what was printed."""
    out, err = report["out"], report["err"]
    numbers = _REPORT.pack(
        report["status"],
        _KILLED.index(report["killed"]),
        report["cpu"],
        report["memory"],
        report["printed"],
        len(out),
        len(err),
        report["left"],
    )
    return b"".join([numbers, out, err])


def unpack_report(data: bytes) -> dict[str, Any]:
    """The report of `pack_report`."""
    status, killed, cpu, memory, printed, out, err, left = _REPORT.unpack_from(data)
    middle = _REPORT.size + out
    return {
        "status": status,
        "killed": _KILLED[killed],
        "cpu": cpu,
        "memory": memory,
        "printed": printed,
        "out": data[_REPORT.size : middle],
        "err": data[middle : middle + err],
        "left": bool(left),
    }


def _exactly(descriptor: int, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(descriptor, min(count - len(pieces), 1 << 20))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)
