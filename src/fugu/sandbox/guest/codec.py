"""Encode plain values as bytes that keep their types, which JSON does not.

None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset and dict, nested
to a bounded depth. Instances of subclasses become their base type: a Counter is a dict. Decoding
makes such values and nothing else, whatever the bytes are, in time and memory that their length
bounds.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

MAX_DEPTH = 64
MAX_INT_BYTES = 1 << 16  # of one integer; arithmetic with larger ones is slow
MAX_BYTES = 64 << 20
_SIZE = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_MANY = 64  # keys of one hash that a set or a dict may hold
_WORK = 1 << 22  # comparisons that keys of one hash may take, beside those of honest values


class CodecError(ValueError):
    """A value cannot be encoded, or bytes cannot be decoded."""


class TooLongError(CodecError):
    """A value takes more bytes than allowed."""


def encode(value: object, limit: int = MAX_BYTES) -> bytes:
    """Return the bytes of a value; at most `limit` of them.

    >>> decode(encode((1, [2.5, {"a": {3, 4}}], b"x"))) == (1, [2.5, {"a": {3, 4}}], b"x")
    True
    """
    out = bytearray()
    _write(value, out, limit, MAX_DEPTH)
    return bytes(out)


def decode(data: bytes) -> Any:
    """Return the value that the bytes encode; CodecError if there is none."""
    reader = _Reader(data)
    try:
        value = reader.value(MAX_DEPTH)
    except (UnicodeDecodeError, TypeError) as error:  # an unhashable key
        raise CodecError(f"these bytes are no value: {error}") from None
    if reader.at != len(data):
        raise CodecError(f"{len(data) - reader.at} bytes follow the value")
    return value


def _write(value: object, out: bytearray, limit: int, depth: int) -> None:
    if depth < 0:
        raise CodecError(f"a value nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if kind is int:
        _write_int(value, out)  # type: ignore[arg-type]
    elif kind is list or kind is tuple:
        _write_items(value, kind, out, limit, depth)
    elif value is None:
        out += b"N"
    elif kind is bool:
        out += b"T" if value else b"F"
    elif issubclass(kind, int):
        _write_int(value, out)  # type: ignore[arg-type]
    elif issubclass(kind, float):
        out += b"f" + _FLOAT.pack(value)
    elif issubclass(kind, complex):
        out += b"c" + _COMPLEX.pack(value.real, value.imag)  # type: ignore[attr-defined]
    elif issubclass(kind, str):
        _write_bytes(b"s", str.encode(value, "utf-8", "surrogatepass"), out)  # type: ignore[arg-type]
    elif issubclass(kind, (bytes, bytearray)):
        _write_bytes(b"b" if issubclass(kind, bytes) else b"B", value, out)  # type: ignore[arg-type]
    else:
        _write_items(value, kind, out, limit, depth)
    if len(out) > limit:
        raise TooLongError(f"a value of more than {limit} bytes")


def _write_int(value: int, out: bytearray) -> None:
    size = int.bit_length(value) // 8 + 1
    if size > MAX_INT_BYTES:
        raise TooLongError(f"an integer of more than {MAX_INT_BYTES} bytes")
    out += b"i" + _SIZE.pack(size) + int.to_bytes(value, size, "little", signed=True)


def _write_bytes(tag: bytes, data: bytes, out: bytearray) -> None:
    if len(data) >= 1 << 32:
        raise TooLongError("a text of more than 4 GiB")
    out += tag + _SIZE.pack(len(data)) + data


def _write_items(value: Any, kind: type, out: bytearray, limit: int, depth: int) -> None:
    if issubclass(kind, (list, tuple)):
        items = list(list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value))
        out += (b"l" if issubclass(kind, list) else b"t") + _SIZE.pack(len(items))
        for item in items:
            _write(item, out, limit, depth - 1)
    elif issubclass(kind, dict):
        pairs = list(dict.items(value))
        out += b"d" + _SIZE.pack(len(pairs))
        for key, item in pairs:
            _write(key, out, limit, depth - 1)
            _write(item, out, limit, depth - 1)
    elif issubclass(kind, (set, frozenset)):
        written = sorted(_written(item, limit, depth - 1) for item in list(value))
        out += (b"S" if issubclass(kind, set) else b"Z") + _SIZE.pack(len(written))
        for data in written:  # in the order of their bytes: equal sets are equal bytes
            out += data
    else:
        raise CodecError(f"a value of type {kind.__name__} cannot pass")


def _written(value: object, limit: int, depth: int) -> bytes:
    out = bytearray()
    _write(value, out, limit, depth)
    return bytes(out)


class _Reader:
    """Reads values from bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self._work = _WORK + 4 * len(data)

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise CodecError("the bytes end within a value")
        return self.data[start : self.at]

    def size(self) -> int:
        size: int = _SIZE.unpack(self.take(4))[0]
        if size > len(self.data) - self.at:  # every item takes a byte at least
            raise CodecError("the bytes end within a value")
        return size

    def value(self, depth: int) -> Any:
        if depth < 0:
            raise CodecError(f"a value nested more than {MAX_DEPTH} deep")
        tag = self.take(1)
        if tag == b"i":
            return self.integer()
        if tag == b"s":
            return self.take(self.size()).decode("utf-8", "surrogatepass")
        if tag == b"f":
            return _FLOAT.unpack(self.take(8))[0]
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"l":
            return self.items(depth)
        if tag == b"t":
            return tuple(self.items(depth))
        if tag == b"d":
            return self.pairs(depth)
        if tag in (b"S", b"Z"):
            keys = self.checked(self.items(depth))
            return set(keys) if tag == b"S" else frozenset(keys)
        if tag in (b"b", b"B"):
            data = self.take(self.size())
            return data if tag == b"b" else bytearray(data)
        if tag == b"c":
            return complex(*_COMPLEX.unpack(self.take(16)))
        raise CodecError(f"no value begins with {tag!r}")

    def integer(self) -> int:
        size = self.size()
        if size > MAX_INT_BYTES:
            raise CodecError(f"an integer of more than {MAX_INT_BYTES} bytes")
        return int.from_bytes(self.take(size), "little", signed=True)

    def items(self, depth: int) -> list[Any]:
        return [self.value(depth - 1) for _ in range(self.size())]

    def pairs(self, depth: int) -> dict[Any, Any]:
        size = self.size()
        keys, items = [], []
        for _ in range(size):
            keys.append(self.value(depth - 1))
            items.append(self.value(depth - 1))
        return dict(zip(self.checked(keys), items, strict=True))

    def checked(self, keys: list[Any]) -> Collection[Any]:
        """Return the keys, unless so many share a hash that a dict of them would take too long."""
        counts: dict[int, int] = {}
        for key in keys:
            number = hash(key)
            met = counts[number] = counts.get(number, 0) + 1
            if met > _MANY:
                raise CodecError(f"more than {_MANY} keys of one hash")
            if met > 1:
                self._work -= met * _comparisons(key)
                if self._work < 0:
                    raise CodecError("keys of one hash that take too long to tell apart")
        return keys


_CONSTANTS = {b"N": None, b"T": True, b"F": False}


def _comparisons(key: Any) -> int:
    """Return how many comparisons may tell a key from another of the same hash.

    Sets compare each item with all items of its hash: in nested sets that multiplies.
    """
    if isinstance(key, tuple):
        return 1 + sum(map(_comparisons, key))
    if isinstance(key, frozenset):
        counts: dict[int, int] = {}
        for item in key:
            counts[hash(item)] = counts.get(hash(item), 0) + 1
        return 1 + sum(counts[hash(item)] * _comparisons(item) for item in key)
    return 1 + (len(key) if isinstance(key, (str, bytes)) else 0) // 64
