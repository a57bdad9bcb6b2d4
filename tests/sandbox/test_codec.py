"""Values keep their types on the way, and hostile bytes are refused."""

from __future__ import annotations

import contextlib
import math
import struct
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.sandbox.guest.codec import MAX_DEPTH, CodecError, TooLongError, decode, encode

keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
values = st.recursive(
    keys | st.binary().map(bytearray) | st.floats(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def alike(one: Any, other: Any) -> bool:
    """Equal, of one type all through, nan to nan, and -0.0 to -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return all(alike(a, c) and alike(b, d) for (a, b), (c, d) in pairs)
    return bool(one == other)


@given(values)
@settings(max_examples=300)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    assert alike(value, decode(encode(value)))


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_any_bytes_are_a_value_or_an_error_of_ours(data: bytes) -> None:
    try:
        value = decode(data)
    except CodecError:
        return
    encode(value)


@given(values, st.data())
@settings(max_examples=200)
def test_bytes_that_were_tampered_with_are_a_value_or_an_error(value: Any, data: Any) -> None:
    written = bytearray(encode(value))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        decode(bytes(written))
    with pytest.raises(CodecError):
        decode(bytes(written[:place]))


def test_types_that_json_loses() -> None:
    value = {(1, 2): {3, 4}, 5: (b"x", 10**50, math.inf), None: [True, 1, 1.0, frozenset({"a"})]}
    assert alike(decode(encode(value)), value)
    assert math.isnan(decode(encode(math.nan)))


def test_subclasses_travel_as_what_they_are_beneath() -> None:
    point = namedtuple("point", "x y")
    colour = IntEnum("colour", "RED")  # type: ignore[misc]

    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    assert type(decode(encode(Liar(3)))) is int
    assert decode(encode(Liar(3))) == 3
    given_ = [Counter("aab"), OrderedDict(a=1), point(1, 2), colour.RED, True]
    assert alike(decode(encode(given_)), [{"a": 2, "b": 1}, {"a": 1}, (1, 2), 1, True])


@pytest.mark.parametrize("value", [object(), (i for i in ()), len, type, [{}, {"a": [object()]}]])
def test_other_values_are_refused_by_their_type(value: Any) -> None:
    with pytest.raises(CodecError, match="object|generator|builtin|type"):
        encode(value)


def test_depth_is_bounded_and_a_value_in_itself_is_refused() -> None:
    inside: list[Any] = []
    inside.append(inside)
    with pytest.raises(CodecError, match="nested"):
        encode(inside)
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert decode(encode(deep)) == deep
    with pytest.raises(CodecError, match="nested"):
        encode([deep])
    with pytest.raises(CodecError, match="nested"):
        decode(b"l\1\0\0\0" * 5000 + b"N")


def test_size_is_bounded() -> None:
    with pytest.raises(TooLongError, match="100 bytes"):
        encode("x" * 101, limit=100)
    shared: list[Any] = [0]
    for _ in range(40):  # 2**40 items, few objects
        shared = [shared, shared]
    with pytest.raises(TooLongError):
        encode(shared, limit=10_000)
    with pytest.raises(CodecError, match="integer"):
        encode(1 << (1 << 20))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "end"),
        (b"N" + b"N", "follow"),
        (b"l\xff\xff\xff\xff", "end"),
        (b"i\1\0\1\0" + bytes((1 << 16) + 1), "integer"),
        (b"s\1\0\0\0\xff", "no value"),
        (b"d\1\0\0\0" + b"l\0\0\0\0" + b"N", "no value"),
        (b"S\1\0\0\0" + b"l\0\0\0\0", "no value"),
        (b"?", "begins"),
    ],
)
def test_hostile_bytes_by_kind(data: bytes, word: str) -> None:
    with pytest.raises(CodecError, match=word):
        decode(data)


def test_keys_that_collide_are_refused_before_they_take_for_ever() -> None:
    same_hash = [n * (2**61 - 1) for n in range(5000)]
    with pytest.raises(CodecError, match="one hash"):
        decode(encode(same_hash).replace(b"l", b"S", 1))
    honest = set(range(5000))
    assert decode(encode(honest)) == honest


def test_equal_sets_are_equal_bytes() -> None:
    names = [f"name {n}" for n in range(100)]
    other: set[str] = set()
    for name in reversed(names):
        other.add(name)
    assert encode(set(names)) == encode(other)
