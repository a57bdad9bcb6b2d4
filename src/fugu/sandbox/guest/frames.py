"""Messages over a stream: four bytes of length, then a value."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from .codec import decode

HEADER = struct.Struct("<I")
MARK = b"\0fugu report\0"  # before a report on standard error, where others may write too


def framed(payload: bytes) -> bytes:
    """A payload with its length before it."""
    return HEADER.pack(len(payload)) + payload


def write(descriptor: int, payload: bytes) -> None:
    """Write a payload as one message; waits."""
    rest = memoryview(framed(payload))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> Any:
    """The next message's value; waits. EOFError at the end of the stream."""
    return decode(receive_bytes(descriptor))


def receive_bytes(descriptor: int) -> bytes:
    """The next message as it is; waits. EOFError at the end of the stream."""
    size: int = HEADER.unpack(_exactly(descriptor, HEADER.size))[0]
    return _exactly(descriptor, size)


def pack_report(report: dict[str, Any]) -> bytes:
    """A report as a line of JSON and what was printed."""
    out, err = report["out"], report["err"]
    told = {**report, "out": len(out), "err": len(err)}
    return b"".join([json.dumps(told).encode(), b"\n", out, err])


def unpack_report(data: bytes) -> dict[str, Any]:
    """The report of `pack_report`."""
    line, _, printed = data.partition(b"\n")
    report: dict[str, Any] = json.loads(line)
    middle = report["out"]
    report["out"], report["err"] = printed[:middle], printed[middle : middle + report["err"]]
    return report


def _exactly(descriptor: int, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(descriptor, min(count - len(pieces), 1 << 20))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)
