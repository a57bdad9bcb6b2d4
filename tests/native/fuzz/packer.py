"""A layout, values and rows out of a fuzzer's bytes, for the native packer and its reference.

Both must write the same bytes, give the same values and refuse the same with the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from strategies import FLOATS, INTEGERS, LIMIT, OpenText, same, value_of

from fugu import native
from fugu.core.errors import PackError, SpaceError
from fugu.spaces import Layout

assert native.available, native.reason

MOST_BYTES = 1 << 16  # of a row
ALPHABETS = ("a", "ab", "0123456789", "äß🐡", "".join(map(chr, range(0x4E00, 0x4F30))))


class Input:
    """Numbers out of bytes; past their end everything is 0."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def empty(self) -> bool:
        return self.at >= len(self.data)

    def bytes(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken + b"\0" * (count - len(taken))

    def below(self, count: int) -> int:
        return self.bytes(1)[0] % count

    def number(self) -> int:
        """Small ones, and those at the ends of integer types."""
        bits = (7, 8, 15, 16, 31, 32, 63, 64)[self.below(8)]
        return (0, 1 << bits, -(1 << bits))[self.below(3)] + self.below(7) - 3

    def choose(self, *of: Any) -> Any:
        return of[self.below(len(of))]


# ---------------------------------------------------------------------- spaces


def space_of(given: Input, depth: int) -> Space[Any]:
    kind = given.below(11 if depth else 6)
    inner = depth - 1
    match kind:
        case 0 | 1:
            return box_of(given)
        case 2:
            start = min(max(given.number(), -(2**63)), 2**63 - 300)
            return spaces.Discrete(1 + given.below(200), start=start)
        case 3:
            count, dtype = 1 + given.below(4), given.choose(np.int64, np.int32, np.uint8)
            return spaces.MultiDiscrete([1 + given.below(100) for _ in range(count)], dtype=dtype)
        case 4:
            low = given.below(3)
            return spaces.Text(low + 1 + given.below(5), min_length=low, charset=letters(given))
        case 5:
            return given.choose(OpenText(), spaces.MultiBinary(1 + given.below(9)))
        case 6:
            keys = [given.choose("a", "b/c", "~", "é", "x y") for _ in range(given.below(4))]
            return spaces.Dict({key: space_of(given, inner) for key in keys})
        case 7:
            return spaces.Tuple(tuple(space_of(given, inner) for _ in range(given.below(4))))
        case 8:
            return spaces.OneOf(tuple(space_of(given, inner) for _ in range(1 + given.below(3))))
        case 9:
            return spaces.Sequence(space_of(given, inner), stack=False)
        case _:
            return spaces.Sequence(box_of(given), stack=True)


def box_of(given: Input) -> Space[Any]:
    dtype = np.dtype(given.choose(*INTEGERS, *FLOATS, np.bool_))
    shape = tuple(given.below(4) for _ in range(given.below(4)))
    match dtype.kind:
        case "f":
            bound = given.choose(1.0, 0.5, 100.0, np.inf)
            return spaces.Box(-bound, bound, shape, dtype.type)
        case "b":
            return spaces.Box(0, 1, shape, dtype.type)
        case _:
            ends = np.iinfo(dtype)
            low, high = given.choose((0, 1), (ends.min, ends.max), (3, 100), (0, ends.max))
            return spaces.Box(low, high, shape, dtype.type)


def letters(given: Input) -> str:
    return str(given.choose(*ALPHABETS))


# ---------------------------------------------------------------------- values


def spoilt(value: Any, given: Input) -> Any:
    """Something near a value that may or may not fit."""
    match given.below(8):
        case 0:
            return given.choose(None, "", "\ud800", b"x", 0.5, np.nan, [], {}, (), object())
        case 1:
            return given.number()
        case 2:
            dtype = given.choose(*INTEGERS, *FLOATS, np.bool_, ">i4", ">f4", object, "U3")
            with np.errstate(all="ignore"):
                return np.asarray(value).astype(dtype) if isinstance(value, np.ndarray) else value
        case 3 if isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.ndim):
            return list(value)
        case 4 if isinstance(value, np.ndarray):
            return np.repeat(value, 2, -1)[..., ::2] if value.ndim else value  # not contiguous
        case 5 if isinstance(value, np.ndarray):
            return value[..., None] if given.below(2) else value.T
        case 6 if isinstance(value, np.ndarray):
            unaligned = np.empty(value.nbytes + 1, np.uint8)[1:].view(value.dtype)
            unaligned = unaligned.reshape(value.shape)
            unaligned[...] = value
            return unaligned
        case 7 if isinstance(value, dict):
            return {**value, given.choose("a", "extra", 3): 0}
        case _:
            return given.choose(np.int8, np.uint64, np.int64, np.bool_, int)(given.below(128))


def changed(value: Any, given: Input) -> Any:
    """A value with one part of it spoilt."""
    if isinstance(value, dict) and value and given.below(4):
        key = list(value)[given.below(len(value))]
        return {**value, key: changed(value[key], given)}
    if isinstance(value, tuple) and value and given.below(4):
        at = given.below(len(value))
        return (*value[:at], changed(value[at], given), *value[at + 1 :])
    return spoilt(value, given)


# ---------------------------------------------------------------------- checks


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives, or the words that it refuses with."""
    try:
        return "gives", call()
    except PackError as error:
        return "refuses", str(error)


def check_pack(layout: Layout, reference: Layout, value: Any, stale: int) -> None:
    """Both write the same bytes or refuse with the same words."""
    rows = [np.full(layout.nbytes, stale, np.uint8).view(layout.dtype) for _ in range(2)]
    ours = outcome(lambda: layout.pack(value, rows[0]))
    theirs = outcome(lambda: reference.pack(value, rows[1]))
    assert ours == theirs, (layout, value, ours, theirs)
    if ours[0] == "gives":
        assert rows[0].tobytes() == rows[1].tobytes(), (layout, value)
        check_unpack(layout, reference, rows[0])


def check_unpack(layout: Layout, reference: Layout, row: np.ndarray) -> None:
    """Both give the same value or refuse with the same words; copies are apart from the row."""
    theirs = outcome(lambda: reference.unpack(row))
    for copy in (False, True):
        ours = outcome(lambda copy=copy: layout.unpack(row, copy))
        assert ours[0] == theirs[0], (layout, row.tobytes(), ours, theirs)
        if ours[0] == "gives":
            assert same(ours[1], theirs[1]), (layout, row.tobytes(), ours, theirs)
        else:
            assert ours == theirs, (layout, row.tobytes(), ours, theirs)


def check_round_trip(layout: Layout, value: Any, strict: bool) -> None:
    """What is packed comes back; strict layouts may refuse what is outside their bounds."""
    row = layout.zeros()
    if outcome(lambda: layout.pack(value, row))[0] == "gives":
        assert same(layout.unpack(row), value), (layout, value)
    else:
        assert strict, (layout, value)


def run(data: bytes) -> None:
    """One input: a layout, then values and rows as long as there are bytes."""
    given = Input(data)
    strict, plain = bool(given.below(2)), bool(given.below(2))
    try:
        space = space_of(given, 3)
        layout = Layout(space, limits=LIMIT, strict=strict, plain=plain)
        reference = Layout(space, limits=LIMIT, strict=strict, plain=plain, use_native=False)
    except (SpaceError, AssertionError, ValueError):
        return  # no such space
    if layout.nbytes > MOST_BYTES:
        return
    for _ in range(8):
        value = value_of(space, np.random.default_rng(given.below(256)))
        match given.below(4):
            case 0:
                if not plain:
                    check_round_trip(layout, value, strict)
            case 1:
                check_pack(layout, reference, value, given.below(256))
            case 2:
                check_pack(layout, reference, changed(value, given), given.below(256))
            case _:
                shift = given.below(2)  # rows may stand anywhere in memory
                raw = np.frombuffer(bytearray(shift + layout.nbytes), np.uint8)[shift:]
                raw[:] = np.frombuffer(given.bytes(layout.nbytes), np.uint8)
                check_unpack(layout, reference, raw.view(layout.dtype))
        if given.empty:
            return
