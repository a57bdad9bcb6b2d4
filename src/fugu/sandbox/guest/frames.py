"""Messages between the trusted side and a guest.

Over a stream, a message is four bytes of length and a payload. Values for the guest are packed by
`pack`; values from it, whoever wrote them, are only ever read by `codec.decode`.
"""

from __future__ import annotations

import marshal
import os
import struct
from types import NoneType
from typing import Any, NamedTuple

from .codec import MAX_DEPTH, decode, encode

HEADER = struct.Struct("<I")
MARK = b"\0fugu report\0"  # precedes a report on standard error, where others may write too
# As native/sandbox/supervise.c has them.
ORDER = struct.Struct("<ddQQQ")
_REPORT = struct.Struct("<iidQQ")
_KEPT = 1 << 16  # bytes that are kept of each stream
_KILLED = ("", "wall", "cpu", "asked")
_MARSHAL = 1
_NO_REFERENCES = 2  # a version of marshal that writes a list twice if it occurs twice
_PLAIN = {NoneType, bool, int, float, complex, str, bytes}
_HOLDERS = {list, tuple, set, frozenset, dict}


class Order(NamedTuple):
    """The limits of a child, in seconds and bytes."""

    cpu: float
    wall: float
    memory: int
    file_bytes: int
    output: int

    def pack(self) -> bytes:
        """Return the order as it is sent."""
        return ORDER.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Order:
        """Return the order that `pack` packed."""
        return cls(*ORDER.unpack(data))


def pack(value: Any) -> bytes:
    """Return a value as bytes for a guest; CodecError if it cannot be encoded.

    It uses marshal where that keeps all types: a child that reads it copies few pages.
    """
    if _is_plain(value, MAX_DEPTH):
        return bytes([_MARSHAL]) + marshal.dumps(value, _NO_REFERENCES)
    return b"\0" + encode(value)


def unpack(data: bytes | memoryview) -> Any:
    """Return the value that `pack` packed."""
    return marshal.loads(data[1:]) if data[0] == _MARSHAL else decode(bytes(data[1:]))


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether marshal keeps all types of a value, which is at most so deep.

    It writes each item of a set twice: for sets in sets that doubles with each level.
    """
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth == 0 or kind not in _HOLDERS:
        return False
    items = [*value.keys(), *value.values()] if kind is dict else value
    if set(map(type, items)) <= _PLAIN:
        return True
    nests = kind is not set and kind is not frozenset
    return nests and all(_is_plain(item, depth - 1) for item in items)


def framed(payload: bytes) -> bytes:
    """Return a payload with its length before it."""
    return HEADER.pack(len(payload)) + payload


def write(descriptor: int, payload: bytes) -> None:
    """Write a payload as one message; waits."""
    data = framed(payload)
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def receive(descriptor: int) -> Any:
    """Wait for the next value for a guest; EOFError at the end of the stream."""
    return unpack(receive_bytes(descriptor))


def receive_bytes(descriptor: int) -> bytes:
    """Wait for the next message; EOFError at the end of the stream."""
    size: int = HEADER.unpack(_exactly(descriptor, HEADER.size))[0]
    return _exactly(descriptor, size)


def pack_report(report: dict[str, Any]) -> bytes:
    """Return how a program ended, as bytes."""
    killed = _KILLED.index(report["killed"])
    return _REPORT.pack(report["status"], killed, report["cpu"], report["memory"], report["left"])


def unpack_report(data: bytes) -> dict[str, Any]:
    """Return the report that `pack_report` packed, and the printed text if that follows it."""
    status, killed, cpu, memory, left = _REPORT.unpack_from(data)
    printed = decode(data[_REPORT.size :]) if len(data) > _REPORT.size else {}
    numbers = {"status": status, "cpu": cpu, "memory": memory, "left": bool(left)}
    return {**numbers, "killed": _KILLED[killed], **printed}


def read_streams(streams: tuple[int, int], most: int) -> dict[str, Any]:
    """Return at most so many bytes of each stream, which are files in memory, and close them."""
    out, err = (os.pread(stream, min(most, _KEPT), 0) for stream in streams)
    printed = max(os.fstat(stream).st_size for stream in streams)
    for stream in streams:
        os.close(stream)
    return {"out": out, "err": err, "printed": printed}


def _exactly(descriptor: int, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(descriptor, min(count - len(pieces), 1 << 20))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)
